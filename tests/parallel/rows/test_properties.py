"""Properties of layouts and of resharding plans, on random layouts.

NumPy executes the plans as the collectives would.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from credit_jax.parallel.mesh.device_mesh import DOMAIN
from credit_jax.parallel.rows.exchange import (
    ExchangePattern,
    HaloPattern,
    exchange_pattern,
    halo_pattern,
)
from credit_jax.parallel.rows.layout import Layout, block_layout
from tests.support.properties import fixed

SHARDS, ROWS = st.integers(1, 9), st.integers(1, 60)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[int, list[list[int]]]:
    """Strategy: every row on one shard, in any order, with shards of any length."""
    rows, shards = draw(ROWS), draw(SHARDS)
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
    rows=ROWS,
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
@given(rows=ROWS, shards=SHARDS)
def test_blocks_hold_every_row_once(rows: int, shards: int) -> None:
    layout = block_layout(rows, shards, DOMAIN if shards > 1 else None)
    numbers = [row for own in layout.rows for row in own]
    assert [row for row in numbers if row >= 0] == [*range(rows)]
    assert layout.is_block
    assert layout.has_padding == (
        rows % layout.length > 0 or shards * layout.length > rows
    )
    assert layout.to_blocks() == layout
