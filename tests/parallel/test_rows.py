"""Rows on shards: layouts, halos, exchanges and their plans."""

from __future__ import annotations

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, PartitionSpec

from credit_jax.parallel.mesh.device_mesh import DOMAIN
from credit_jax.parallel.rows.exchange import (
    ExchangePattern,
    HaloPattern,
    _rounds,
    exchange_pattern,
    exchange_rows,
    halo_pattern,
    reshard,
)
from credit_jax.parallel.rows.layout import Field, Layout, block_layout
from credit_jax.parallel.rows.take import MAX_PIECES, take_rows, take_static
from tests.parallel.rows.plans import PLANS, blocks, plan
from tests.support.properties import fixed
from tests.support.sharded import GARBAGE


def test_layouts():
    uneven = blocks(45, 8)
    assert uneven.length == 6
    assert uneven.rows[7] == (42, 43, 44, -1, -1, -1)
    assert uneven.is_block
    assert uneven.has_padding
    few = blocks(4, 8)
    assert few.rows[3:5] == ((3,), (-1,))
    assert blocks(48, 8) == blocks(48, 8)
    assert hash(blocks(48, 8)) == hash(blocks(48, 8))
    assert blocks(48, 8) != blocks(45, 8)
    assert not blocks(6, 2).with_rows([[0, 2], [1]], 6).is_block
    assert blocks(6, 2).with_rows([[0, 2], [1]], 6).rows == ((0, 2), (1, -1))
    assert uneven.to_blocks(16).rows[0] == (0, 1)
    assert isinstance(uneven, Layout)


def compared_with_numpy(layout, per_row):
    """Compares local values and their gradient with numpy; returns the program."""
    num_shards = layout.num_shards
    local = np.maximum(np.asarray(layout.rows).reshape(-1), 0) // layout.strips
    weight = 1.0 + local[:, None] + np.arange(2.0)

    def body(x, weight):
        values = layout.local(x, fill=-7.0)
        return values, jax.grad(lambda x: (layout.local(x) * weight).sum())(x)

    mesh = jax.make_mesh(
        (num_shards,),
        (DOMAIN,),
        axis_types=(AxisType.Auto,),
        devices=jax.devices()[:num_shards],
    )
    spec = PartitionSpec(DOMAIN)
    run = jax.jit(
        jax.shard_map(
            body,
            mesh=mesh,
            in_specs=(PartitionSpec(), spec),
            out_specs=(spec, PartitionSpec()),
        )
    )
    expected = np.where(
        np.asarray(layout.rows).reshape(-1, 1) >= 0, per_row[local], -7.0
    )
    real = np.asarray(layout.rows).reshape(-1) >= 0
    gradient = np.zeros_like(per_row)
    np.add.at(gradient, local[real], weight[real])
    values, slope = run(per_row, weight)
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(slope, gradient)
    return run.lower(per_row, weight).as_text()


@pytest.mark.parametrize(("size", "num_shards"), [(6, 1), (6, 3), (5, 3), (2, 4)])
def test_values_of_blocks_are_slices(size, num_shards):
    per_row = np.arange(2.0 * size, dtype=np.float32).reshape(size, 2)
    program = compared_with_numpy(blocks(size, num_shards), per_row)
    assert "scatter" not in program
    assert "stablehlo.gather" not in program


ROWS = {
    "overlapping": [[0, 1, 2], [2, 3, 4]],
    "padded at the start": [[-1, 0, 1], [2, 3, 4]],
    "with a gap": [[0, 1, 2], [3, 0]],
    "all rows": [range(5), range(5)],
    "no rows": [range(5), []],
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_values_of_any_local_rows(rows):
    per_row = np.arange(10.0, 20.0, dtype=np.float32).reshape(5, 2)
    compared_with_numpy(blocks(5, 2).with_rows(rows, 5), per_row)


def test_values_of_local_strips():
    per_row = np.arange(10.0, dtype=np.float32).reshape(5, 2)
    compared_with_numpy(blocks(5, 3).in_strips(2), per_row)


def test_one_row_range_a_shard_is_a_halo():
    found = halo_pattern(*plan("halo"))
    assert found is not None
    assert (found.low, found.high) == (2, 1)
    assert halo_pattern(*plan("721 rows")) is not None
    for name in ("reversed", "groups", "everything to everyone"):
        assert halo_pattern(*plan(name)) is None, name


def test_transports_are_the_cheapest():
    have, need = plan("groups")
    (pairs, index), *others = exchange_pattern(have.rows, need.rows).pieces
    assert pairs is None, "groups should travel by one all_to_all"
    assert not others
    assert index.shape == (4, 4 * 3), "each shard sends a quarter of its rows to each"
    have, need = plan("4 rows from busy to idle")
    (pairs, _), *others = exchange_pattern(have.rows, need.rows).pieces
    assert {d - s for s, d in pairs} == {4}
    assert not others, "one offset, one permute"
    have, need = plan("pairs of far rows")
    (stays, _), *moves = exchange_pattern(have.rows, need.rows).pieces
    assert stays == (), "row 0 is there already"
    assert len(moves) == 2, "every shard has two partners, at nine offsets in all"
    assert sum(len(pairs) for pairs, _ in moves) == 14, "none sends without need"
    assert {index.shape for _, index in moves} == {(8, 1)}, "one row each"


@pytest.mark.parametrize("seed", range(20))
def test_permutations_are_as_few_as_partners(seed):
    """Random patterns: every pair once, and no shard twice in one permutation."""
    rng = np.random.default_rng(seed)
    num = int(rng.integers(2, 9))
    asks = rng.random((num, num)) < rng.uniform(0.1, 0.9)
    wanted = {(s, d): [0] * int(asks[s, d]) for s in range(num) for d in range(num)}
    rounds = _rounds(wanted, num)
    pairs = [pair for pairs in rounds for pair in pairs]
    assert sorted(pairs) == sorted(pair for pair, rows in wanted.items() if rows)
    for one in rounds:
        assert len({s for s, _ in one}) == len({d for _, d in one}) == len(one)
    moves = asks & ~np.eye(num, dtype=bool)
    partners = max(moves.sum(0).max(), moves.sum(1).max())
    stays = bool(np.diag(asks).any())
    print(f"{num} shards, {moves.sum()} pairs, {partners} permutations")
    assert len(rounds) == partners + stays


def test_where_nothing_is_needed_nothing_moves():
    """Only zeros are needed; a random test found this case."""
    have = block_layout(3)
    need = have.with_rows([[-1, -1]], 3)
    nothing = exchange_pattern(have.rows, need.rows)
    assert nothing.pieces == ()
    rows = exchange_rows(jnp.ones((1, 3, 2)), have, nothing)
    assert jnp.array_equal(rows, jnp.zeros((1, 2, 2)))


SIZE = 24
# name: rows, primitives of the program.
FORMS = {
    "slice": (range(3, 11), ["slice"]),
    "reversed": (range(23, -1, -1), ["rev"]),
    "reversed part": (range(9, 4, -1), ["slice", "rev"]),
    "zeros around": ([-1, -1, *range(20), -1], ["pad"]),
    "zeros only": ([-1, -1], ["broadcast_in_dim"]),
    "mirror": ([2, 1, *range(SIZE), 22, 21], ["slice", "rev", "concatenate"]),
    "wrap": ([*range(20, SIZE), *range(20)], ["slice", "concatenate"]),
    "zeros between": ([0, 1, -1, 2, 3], ["slice", "concatenate"]),
    "one row often": ([5, 5, 5], ["slice", "concatenate"]),
    "there and back": ([3, 2, 3, 4], ["slice", "rev", "concatenate"]),
    "transpose": (np.arange(24).reshape(6, 4).T.reshape(-1), ["transpose"]),
    "irregular": ([(7 * i) % SIZE for i in range(20)], ["gather"]),
    "irregular with zeros": ([(7 * i) % SIZE - 1 for i in range(20)], ["gather"]),
    "irregular, rows again": ([(7 * i) % SIZE - 1 for i in range(60)], ["gather"]),
    "irregular, one row often": ([9, 2, 7, 0, 9, 3, 5, 1, 4, *[6] * 30], ["gather"]),
    "looks like a transpose": ([0, 4, *range(22)], ["slice", "concatenate"]),
}


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", FORMS)
def test_static_index(name, dim):
    index, primitives = FORMS[name]
    index = [int(i) for i in index]
    x = np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32)
    padded = np.concatenate([x, np.zeros_like(np.take(x, [0], dim))], dim)

    def take(x):
        return take_static(x, index, dim)

    out, pullback = jax.vjp(take, jnp.asarray(x))
    assert np.array_equal(out, np.take(padded, index, dim))
    weight = np.random.default_rng(1).integers(-8, 9, out.shape).astype(np.float32)
    expected = np.zeros_like(padded)
    where = (slice(None),) * dim + (np.asarray(index),)
    np.add.at(expected, where, weight)
    expected = np.take(expected, range(SIZE), dim)
    assert np.array_equal(pullback(jnp.asarray(weight))[0], expected)
    text = str(jax.make_jaxpr(take)(x))
    assert all(primitive in text for primitive in primitives), text
    assert ("gather" in primitives) == ("gather" in text), text


def test_a_gradient_scatters_only_where_one_row_is_taken_often():
    def gradient(index):
        loss = lambda x: jnp.square(take_static(x, index, 0)).sum()  # noqa: E731
        return str(jax.make_jaxpr(jax.grad(loss))(jnp.ones((SIZE, 2))))

    for name in ("irregular", "irregular with zeros", "irregular, rows again"):
        assert "scatter" not in gradient(FORMS[name][0]), name
    assert "scatter" in gradient(FORMS["irregular, one row often"][0])


def test_all_rows_are_the_array_itself():
    x = jnp.zeros((SIZE, 2))
    assert take_static(x, list(range(SIZE)), 0) is x


def test_many_pieces_become_a_gather():
    index = [i for k in range(MAX_PIECES + 1) for i in (2 * k, 2 * k + 1, -1)]
    used = str(jax.make_jaxpr(lambda x: take_static(x, index, 0))(jnp.zeros(24)))
    assert "gather" in used


def test_one_device_takes_the_only_list():
    x = jnp.arange(6.0).reshape(6, 1)
    assert take_rows(x, np.asarray([[4, 0]]), None, 0).tolist() == [[4.0], [0.0]]


def on_shards(body, layout, *arrays):
    if layout.num_shards == 1:
        return body(*arrays)
    mesh = jax.make_mesh(
        (layout.num_shards,),
        (DOMAIN,),
        axis_types=(AxisType.Auto,),
        devices=jax.devices()[: layout.num_shards],
    )
    spec = PartitionSpec(None, DOMAIN)
    return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)(*arrays)


def results(name):
    inputs, outputs = results_on(PLANS[name][1])
    return inputs[name], outputs[name]


@lru_cache
def results_on(shards):
    """Returns fetched rows and gradients of all plans for a number of shards."""
    inputs, program = {}, {}
    for number, name in enumerate(PLANS):
        if PLANS[name][1] != shards:
            continue
        have, need = plan(name)
        rng = np.random.default_rng(number)
        x = rng.standard_normal((1, have.num_shards * have.length, 2), np.float32)
        x[:, np.asarray(have.rows).reshape(-1) < 0] = GARBAGE
        # Small integers, whose sums are exact in any order.
        weight = rng.integers(-8, 9, (1, need.num_shards * need.length, 2))
        inputs[name] = x, weight.astype(np.float32)

        def body(x, weight, have=have, need=need):
            out, pullback = jax.vjp(lambda x: reshard(Field(x, have), need).data, x)
            return out, pullback(weight)[0]

        program[name] = lambda x, w, body=body, have=have: on_shards(body, have, x, w)

    @jax.jit
    def run(inputs):
        return {name: program[name](*arrays) for name, arrays in inputs.items()}

    return inputs, run(inputs)


@pytest.mark.parametrize("name", PLANS)
def test_rows_arrive_bit_by_bit(name):
    have, need = plan(name)
    (x, _), (out, _) = results(name)
    out = np.asarray(out)
    where = {row: i for i, row in enumerate(np.asarray(have.rows).reshape(-1))}
    for i, row in enumerate(np.asarray(need.rows).reshape(-1)):
        expected = x[:, where[row]] if row >= 0 else np.zeros_like(x[:, 0])
        assert np.array_equal(out[:, i], expected), f"{name}: row {row} at {i}"


@pytest.mark.parametrize("name", PLANS)
def test_gradients_return_where_rows_came_from(name):
    have, need = plan(name)
    (x, weight), (_, gradient) = results(name)
    expected = np.zeros_like(x)
    where = {row: i for i, row in enumerate(np.asarray(have.rows).reshape(-1))}
    for i, row in enumerate(np.asarray(need.rows).reshape(-1)):
        if row >= 0:
            expected[:, where[row]] += weight[:, i]
    assert np.array_equal(gradient, expected), name


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("wanted", [[5], [4, 5], [0, 9]])
def test_rows_that_do_not_exist(shards, wanted):
    have = blocks(5, shards)
    need = have.with_rows([wanted] * shards, 5)
    x = jnp.zeros((1, have.length * shards, 2))
    with pytest.raises(ValueError, match=r"rows \[\d.*on no shard; .* 0 to 4"):
        on_shards(lambda x: reshard(Field(x, have), need).data, have, x)


# Properties of layouts and of resharding plans, on random layouts.
#
# NumPy executes the plans as the collectives would.


SHARDS, ROWS_PROPERTIES = st.integers(1, 9), st.integers(1, 60)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """Strategy: every row on one shard, in any order, with shards of any length."""
    rows, shards = draw(ROWS_PROPERTIES), draw(SHARDS)
    order = draw(st.permutations(range(rows)))
    owner = draw(st.lists(st.integers(0, shards - 1), min_size=rows, max_size=rows))
    pairs = [*zip(order, owner, strict=True)]
    return rows, [[row for row, own in pairs if own == d] for d in range(shards)]


@st.composite
def needs(draw: st.DrawFn, size: int, shards: int) -> list[list[int]]:
    """Strategy: needed rows per shard in any order, repeated, with zeros, or none."""
    wanted = st.lists(st.integers(-1, size - 1), max_size=12)
    return draw(st.lists(wanted, min_size=shards, max_size=shards))


def local_rows(layout: Layout) -> list[np.ndarray]:
    """Returns each shard's local array: row indices, and noise as padding."""
    return [np.where(np.array(r) < 0, -77, r) for r in layout.rows]


def exchanged(x: list[np.ndarray], plan: ExchangePattern) -> np.ndarray:
    """Returns each shard's rows after the plan; zero rows are -1."""
    num = len(x)
    received: list[list[np.ndarray]] = [[] for _ in range(num)]
    for pairs, index in plan.pieces:
        sent = [np.where(index[s] < 0, -99, x[s][index[s]]) for s in range(num)]
        if pairs is None:
            parts = [np.split(own, num) for own in sent]
            arrived = [
                np.concatenate([parts[s][d] for s in range(num)]) for d in range(num)
            ]
        elif pairs:
            arrived = [np.full_like(sent[d], -88) for d in range(num)]
            for s, d in pairs:
                arrived[d] = sent[s]
        else:
            arrived = sent
        for d in range(num):
            received[d].append(arrived[d])
    # Where nothing is needed, nothing is received.
    buffers = [np.concatenate(parts) if parts else x[0] for parts in received]
    rows = [buffers[d][plan.position[d]] for d in range(num)]
    return np.where(plan.valid, rows, -1)


@pytest.mark.slow
@fixed
@given(data=st.data(), partition=partitions())
def test_an_exchange_brings_what_is_needed(
    data: st.DataObject, partition: tuple[int, list[list[int]]]
) -> None:
    rows, own = partition
    axis = DOMAIN if len(own) > 1 else None
    have = block_layout(rows, len(own), axis).with_rows(own, rows)
    need = have.with_rows(data.draw(needs(have.size, have.num_shards)), have.size)
    plan = exchange_pattern(have.rows, need.rows)
    np.testing.assert_array_equal(exchanged(local_rows(have), plan), need.rows)
    for pairs, _ in plan.pieces:
        sources, targets = zip(*pairs, strict=True) if pairs else ((), ())
        assert len(set(sources)) == len(sources), "a shard sends once in a message"
        assert len(set(targets)) == len(targets), "and receives once"


@fixed
@given(
    rows=st.integers(1, 12),
    shards=SHARDS,
    strips=st.integers(1, 6),
    seed=st.randoms(use_true_random=False),
)
def test_strips_are_exchanged_as_rows_are(
    rows: int, shards: int, strips: int, seed: object
) -> None:
    have = block_layout(rows, shards, DOMAIN if shards > 1 else None).in_strips(strips)
    numbers = [*range(rows * strips)]
    seed.shuffle(numbers)  # type: ignore[attr-defined]
    wanted = [numbers[d::shards] for d in range(shards)]
    need = have.with_strips(wanted, rows, strips)
    plan = exchange_pattern(have.rows, need.rows)
    np.testing.assert_array_equal(exchanged(local_rows(have), plan), need.rows)
    back = exchange_pattern(need.rows, have.rows)
    np.testing.assert_array_equal(exchanged(local_rows(need), back), have.rows)


def exchanged_halo(have: Layout, plan: HaloPattern, length: int) -> np.ndarray:
    """Returns shards' slices of [low rows | own block | high rows]; zeros are -1."""
    x = np.concatenate(local_rows(have))
    beyond = np.full(plan.low + plan.high + length, -99)
    globe = np.concatenate([beyond, x, beyond])
    found = []
    for d, start in enumerate(plan.starts):
        first = len(beyond) + d * have.length - plan.low
        extended = globe[first : first + plan.low + have.length + plan.high]
        wide = np.concatenate([np.full(length, -99), extended, np.full(length, -99)])
        begin = min(max(start + length, 0), len(wide) - length)
        found.append(wide[begin : begin + length])
    rows = np.array(found)
    return rows if plan.valid is None else np.where(plan.valid, rows, -1)


@fixed
@given(
    rows=ROWS_PROPERTIES,
    shards=st.integers(2, 9),
    low=st.integers(0, 9),
    high=st.integers(0, 9),
)
def test_a_halo_brings_what_is_needed(
    rows: int, shards: int, low: int, high: int
) -> None:
    """Own rows with halo rows, zero beyond the poles, for supported layouts."""
    have = block_layout(rows, shards, DOMAIN)
    wanted = [
        [
            g if 0 <= g < rows else -1
            for g in range(own[0] - low, own[0] + have.length + high)
        ]
        if own[0] >= 0
        else []
        for own in have.rows
    ]
    need = have.with_rows(wanted, rows)
    plan = halo_pattern(have, need)
    if plan is None:
        reach = -(-max(low, 1) // have.length) - (-max(high, 1) // have.length)
        assert reach > max(2, shards // 2), "only a far reach is left to exchanges"
        return
    found = exchanged_halo(have, plan, need.length)
    real = np.array(need.rows) >= 0
    np.testing.assert_array_equal(found[real], np.array(need.rows)[real])
    if plan.valid is not None:
        active = np.array([own[0] >= 0 for own in have.rows])
        np.testing.assert_array_equal(found[active], np.array(need.rows)[active])


@fixed
@given(rows=ROWS_PROPERTIES, shards=SHARDS)
def test_blocks_hold_every_row_once(rows: int, shards: int) -> None:
    layout = block_layout(rows, shards, DOMAIN if shards > 1 else None)
    numbers = [row for own in layout.rows for row in own]
    assert [row for row in numbers if row >= 0] == [*range(rows)]
    assert layout.is_block
    assert layout.has_padding == (
        rows % layout.length > 0 or shards * layout.length > rows
    )
    assert layout.to_blocks() == layout
