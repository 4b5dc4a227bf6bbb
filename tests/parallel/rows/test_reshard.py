"""`reshard`: every row plan, bit by bit, and its gradient."""

from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from credit_jax.parallel.mesh.axes import DOMAIN
from credit_jax.parallel.rows.layout import Field, Layout, block_layout
from credit_jax.parallel.rows.reshard import (
    _plan_exchange,
    _plan_window,
    _rounds,
    reshard,
)
from tests.support.sharded import GARBAGE

ZERO = -1


def home(rows, shards):
    return block_layout(rows, shards, DOMAIN if shards > 1 else None)


def spread(layout, low, high):
    """Own rows and `low` and `high` further ones, zero rows beyond the poles."""
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


# name: global rows, shards, rows wanted of a layout.
PLANS = {
    "halo": (48, 4, lambda a: spread(a, 2, a.length + 1)),
    "halo, uneven": (45, 8, lambda a: spread(a, 1, a.length + 1)),
    "halo over several shards": (16, 8, lambda a: spread(a, 3, a.length + 3)),
    "halo wider than the field": (6, 3, lambda a: spread(a, 9, a.length + 9)),
    "rows below only": (45, 4, lambda a: spread(a, 0, a.length + 3)),
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
    "4 rows on 8 shards": (4, 8, lambda a: spread(a, 1, 2)),
    "4 rows on 8 shards, reversed": (4, 8, lambda a: [[3], [2], [1], [0], *[[]] * 4]),
    "4 rows from busy to idle": (4, 8, lambda a: [*[[]] * 4, [0], [1], [2], [3]]),
    "padding becomes zeros": (5, 3, lambda a: [[0, 1], [2, 3], [4, ZERO]]),
    "one device": (9, 1, lambda a: [[8, 0, ZERO, 3, 3]]),
    "one device, reversed": (9, 1, lambda a: [range(8, -1, -1)]),
    "721 rows": (721, 8, lambda a: spread(a, 14, a.length + 17)),
}  # fmt: skip


def plan(name):
    rows, shards, wanted = PLANS[name]
    have = home(rows, shards)
    need = [[int(row) for row in rows] for rows in wanted(have)]
    return have, have.with_rows(need, rows)


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
    """Fetched rows and gradients of all plans for so many shards, in one program."""
    inputs, program = {}, {}
    for number, name in enumerate(PLANS):
        if PLANS[name][1] != shards:
            continue
        have, need = plan(name)
        rng = np.random.default_rng(number)
        x = rng.standard_normal((1, have.num_shards * have.length, 2), np.float32)
        x[:, np.asarray(have.rows).reshape(-1) < 0] = GARBAGE
        # Small integers: sums of them are exact, in whatever order.
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


def test_transports_are_the_cheapest():
    assert _plan_window(*plan("halo")) is not None
    assert _plan_window(*plan("721 rows")) is not None
    for name in ("reversed", "groups", "everything to everyone"):
        assert _plan_window(*plan(name)) is None, name
    have, need = plan("groups")
    (pairs, index), *others = _plan_exchange(have.rows, need.rows).pieces
    assert pairs is None, "groups should travel by one all_to_all"
    assert not others
    assert index.shape == (4, 4 * 3), "each shard sends a quarter of its rows to each"
    have, need = plan("4 rows from busy to idle")
    (pairs, _), *others = _plan_exchange(have.rows, need.rows).pieces
    assert {d - s for s, d in pairs} == {4}
    assert not others, "one offset, one permute"
    have, need = plan("pairs of far rows")
    (stays, _), *moves = _plan_exchange(have.rows, need.rows).pieces
    assert stays == (), "row 0 is there already"
    assert len(moves) == 2, "every shard has two partners, at nine offsets in all"
    assert sum(len(pairs) for pairs, _ in moves) == 14, "none sends without need"
    assert {index.shape for _, index in moves} == {(8, 1)}, "one row each"


@pytest.mark.parametrize("seed", range(20))
def test_permutations_are_as_few_as_partners(seed):
    """Every pair once, no shard twice in one, on random patterns."""
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


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("wanted", [[5], [4, 5], [0, 9]])
def test_rows_that_do_not_exist(shards, wanted):
    have = home(5, shards)
    need = have.with_rows([wanted] * shards, 5)
    x = jnp.zeros((1, have.length * shards, 2))
    with pytest.raises(ValueError, match=r"rows \[\d.*held by no shard; .* 0 to 4"):
        on_shards(lambda x: reshard(Field(x, have), need).data, have, x)


def test_layouts():
    uneven = home(45, 8)
    assert uneven.length == 6
    assert uneven.rows[7] == (42, 43, 44, -1, -1, -1)
    assert uneven.is_block
    assert uneven.has_filler
    few = home(4, 8)
    assert few.rows[3:5] == ((3,), (-1,))
    assert home(48, 8) == home(48, 8)
    assert hash(home(48, 8)) == hash(home(48, 8))
    assert home(48, 8) != home(45, 8)
    assert not home(6, 2).with_rows([[0, 2], [1]], 6).is_block
    assert home(6, 2).with_rows([[0, 2], [1]], 6).rows == ((0, 2), (1, -1))
    assert uneven.to_blocks(16).rows[0] == (0, 1)
    assert isinstance(uneven, Layout)


def test_values_of_local_rows():
    layout = home(5, 3)
    values = np.arange(10.0, 15.0)

    def body(x):
        local = layout.local(values, fill=-7.0)
        return local + 0 * x, layout.global_rows() + 0 * x.astype(int)

    mesh = jax.make_mesh(
        (3,), (DOMAIN,), axis_types=(AxisType.Auto,), devices=jax.devices()[:3]
    )
    spec = PartitionSpec(DOMAIN)
    run = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)
    local, rows = run(jnp.zeros(6))
    assert local.tolist() == [10, 11, 12, 13, 14, -7]
    assert rows.tolist() == [0, 1, 2, 3, 4, -1]
