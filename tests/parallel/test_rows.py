"""Rows on shards: layouts, halos, exchanges and their plans."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from credit_jax.parallel.mesh.device_mesh import DOMAIN
from credit_jax.parallel.rows.exchange import _rounds, exchange_pattern, reshard
from credit_jax.parallel.rows.layout import Field, block_layout
from credit_jax.parallel.rows.take import MAX_PIECES, take_static
from tests.support.sharded import GARBAGE, mesh_of_shards

ZERO = -1


def blocks(rows, shards):
    return block_layout(rows, shards, DOMAIN if shards > 1 else None)


def widened(layout, low, high):
    """Own rows with `low` and `high` halo rows; rows beyond the poles are zero."""
    return [
        [g if 0 <= g < layout.size else ZERO for g in range(h[0] - low, h[0] + high)]
        if h[0] >= 0
        else []
        for h in layout.rows
    ]


def shifted(layout, by):
    return [
        [(g + by) % layout.size if g >= 0 else ZERO for g in rows]
        for rows in layout.rows
    ]


# name: global rows, shards, rows needed on each shard.
PLANS = {
    "halo": (48, 4, lambda a: widened(a, 2, a.length + 1)),
    "halo, uneven": (45, 8, lambda a: widened(a, 1, a.length + 1)),
    "halo over several shards": (16, 8, lambda a: widened(a, 3, a.length + 3)),
    "halo wider than the field": (6, 3, lambda a: widened(a, 9, a.length + 9)),
    "rows below only": (45, 4, lambda a: widened(a, 0, a.length + 3)),
    "part of the own rows": (48, 4, lambda a: [h[1:5] for h in a.rows]),
    "inner zeros": (
        12,
        3,
        lambda a: [[h[0], ZERO, h[2], ZERO] for h in a.rows],
    ),
    "reversed": (45, 3, lambda a: [range(44 - h[0], 29 - h[0], -1) for h in a.rows]),
    "cyclic shift": (48, 4, lambda a: shifted(a, 5)),
    "cyclic shift, uneven": (45, 8, lambda a: shifted(a, -7)),
    "repeated rows": (10, 2, lambda a: [[0, 0, 9, 9, 0], [5, 5, 5, ZERO, 4]]),
    "groups": (48, 4, lambda a: [range(d, 48, 4) for d in range(4)]),
    "group major": (
        48,
        4,
        lambda a: np.arange(48).reshape(4, 4, 3).transpose(1, 2, 0).reshape(4, 12),
    ),
    "pairs of far rows": (16, 8, lambda a: [[d, d + 8] for d in range(8)]),
    "everything to everyone": (13, 8, lambda a: [range(13)] * 8),
    "all to one shard": (13, 4, lambda a: [range(13), [], [], []]),
    "one row to all": (13, 8, lambda a: [[12]] * 8),
    "nothing but zeros": (13, 4, lambda a: [[ZERO] * 3] * 4),
    "4 rows on 8 shards": (4, 8, lambda a: widened(a, 1, 2)),
    "4 rows on 8 shards, reversed": (4, 8, lambda a: [[3], [2], [1], [0], *[[]] * 4]),
    "4 rows from busy to idle": (4, 8, lambda a: [*[[]] * 4, [0], [1], [2], [3]]),
    "padding becomes zeros": (5, 3, lambda a: [[0, 1], [2, 3], [4, ZERO]]),
    "one device": (9, 1, lambda a: [[8, 0, ZERO, 3, 3]]),
    # A random test found this case: only zeros are needed.
    "one device, nothing": (3, 1, lambda a: [[ZERO, ZERO]]),
    "one device, reversed": (9, 1, lambda a: [range(8, -1, -1)]),
    "721 rows": (721, 8, lambda a: widened(a, 14, a.length + 17)),
}  # fmt: skip


def random_plan(seed):
    """Rows in any order on any shard, halos, or strips: layouts before and after."""
    rng = np.random.default_rng(seed)
    rows, shards = int(rng.integers(1, 30)), (3, 4, 5, 8)[seed // 3 % 4]
    layout = blocks(rows, shards)
    if seed % 3 == 0:
        owner = rng.integers(0, shards, rows)
        order = rng.permutation(rows)
        have = [[int(r) for r in order if owner[r] == d] for d in range(shards)]
        counts = rng.integers(0, 12, shards)
        need = [rng.integers(ZERO, rows, count).tolist() for count in counts]
        return layout.with_rows(have, rows), layout.with_rows(need, rows)
    if seed % 3 == 1:
        low, high = rng.integers(0, 9, 2).tolist()
        return layout, layout.with_rows(
            widened(layout, low, layout.length + high), rows
        )
    strips = int(rng.integers(2, 6))
    numbers = rng.permutation(rows * strips).tolist()
    parts = [numbers[d::shards] for d in range(shards)]
    return layout.in_strips(strips), layout.with_rows(parts, rows, strips)


NAMES = [*PLANS, *(f"random {seed}" for seed in range(24))]


@cache
def plan(name):
    if name not in PLANS:
        return random_plan(int(name.split()[1]))
    rows, shards, wanted = PLANS[name]
    have = blocks(rows, shards)
    need = [[int(row) for row in rows] for rows in wanted(have)]
    return have, have.with_rows(need, rows)


BLOCKS = [(6, 1), (6, 3), (5, 3), (2, 4)]


def compared_with_numpy(layout, per_row):
    """Compares local values and their gradient with numpy; returns the program."""
    local = np.maximum(np.asarray(layout.rows).reshape(-1), 0) // layout.strips
    weight = 1.0 + local[:, None] + np.arange(2.0)

    def body(x, weight):
        values = layout.local(x, fill=-7.0)
        return values, jax.grad(lambda x: (layout.local(x) * weight).sum())(x)

    spec, whole = PartitionSpec(DOMAIN), PartitionSpec()
    run = jax.jit(
        jax.shard_map(
            body,
            mesh=mesh_of_shards(layout.num_shards),
            in_specs=(whole, spec),
            out_specs=(spec, whole),
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


LAYOUTS = {
    **{f"blocks {size} {shards}": blocks(size, shards) for size, shards in BLOCKS},
    **{
        name: blocks(5, 2).with_rows(rows, 5)
        for name, rows in {
            "overlapping": [[0, 1, 2], [2, 3, 4]],
            "padded at the start": [[-1, 0, 1], [2, 3, 4]],
            "with a gap": [[0, 1, 2], [3, 0]],
            "all rows": [range(5), range(5)],
            "no rows": [range(5), []],
        }.items()
    },
    "strips": blocks(5, 3).in_strips(2),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_values_of_local_rows_and_strips(name):
    layout = LAYOUTS[name]
    per_row = np.arange(2.0 * layout.size, dtype=np.float32).reshape(-1, 2)
    program = compared_with_numpy(layout, per_row)
    if name.startswith("blocks"):
        assert "scatter" not in program, "blocks are slices"
        assert "stablehlo.gather" not in program


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
    "many pieces": (
        [i for k in range(MAX_PIECES + 1) for i in (k % 23, k % 23 + 1, -1)],
        ["gather"],
    ),
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


@cache
def results_on(shards):
    """Returns fetched rows and gradients of all plans for a number of shards."""
    plans = {name: plan(name) for name in NAMES if plan(name)[0].num_shards == shards}
    inputs = {}
    for number, (name, (have, need)) in enumerate(plans.items()):
        rng = np.random.default_rng(number)
        x = rng.standard_normal((1, shards * have.length, 2), np.float32)
        x[:, np.asarray(have.rows).reshape(-1) < 0] = GARBAGE
        # Small integers, whose sums are exact in any order.
        weight = rng.integers(-8, 9, (1, shards * need.length, 2))
        inputs[name] = x, weight.astype(np.float32)

    def both(x, weight, have, need):
        out, pullback = jax.vjp(lambda x: reshard(Field(x, have), need).data, x)
        return out, pullback(weight)[0]

    def run(inputs):
        return {n: both(*arrays, *plans[n]) for n, arrays in inputs.items()}

    if shards > 1:
        spec = PartitionSpec(None, DOMAIN)
        run = jax.shard_map(
            run, mesh=mesh_of_shards(shards), in_specs=(spec,), out_specs=spec
        )
    return inputs, jax.jit(run)(inputs)


@pytest.mark.parametrize("name", NAMES)
def test_rows_arrive_bit_by_bit_and_gradients_return(name):
    have, need = plan(name)
    inputs, outputs = results_on(have.num_shards)
    (x, weight), (out, gradient) = inputs[name], map(np.asarray, outputs[name])
    expected = np.zeros_like(x)
    where = {row: i for i, row in enumerate(np.asarray(have.rows).reshape(-1))}
    for i, row in enumerate(np.asarray(need.rows).reshape(-1)):
        there = x[:, where[row]] if row >= 0 else np.zeros_like(x[:, 0])
        assert np.array_equal(out[:, i], there), f"row {row} at {i}"
        if row >= 0:
            expected[:, where[row]] += weight[:, i]
    assert np.array_equal(gradient, expected)


@pytest.mark.parametrize("shards", [1, 3, 8])
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 45, 48])
def test_blocks_hold_every_row_once(rows, shards):
    layout = blocks(rows, shards)
    numbers = [row for own in layout.rows for row in own]
    assert [row for row in numbers if row >= 0] == [*range(rows)]
    assert layout.length == max(-(-rows // shards), 1)
    assert layout.is_block
    assert layout.has_padding == (len(numbers) > rows)
    assert layout.to_blocks() == layout
    assert not blocks(6, 2).with_rows([[0, 2], [1]], 6).is_block
