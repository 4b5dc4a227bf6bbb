"""`reshard`: the one primitive that moves rows between the shards of a dim.

An operation states, as a `Layout`, which global rows each shard needs (its row plan),
in any order, repeated or absent (-1: a row of zeros). `reshard` turns the layout that
is there into the one that is needed. Its gradient is JAX's own transpose.

Three transports, chosen at trace time:
    halo        each shard needs one row range around its own block: one
                `ppermute` per neighbor that it reaches into, of as many rows as any
                shard needs from there;
    all_to_all  most shards talk to most (long attention): one exchange of 1/n of the
                field;
    permute     otherwise: as many `ppermute` as a shard has partners, each of the pairs
                that have rows for each other and of no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.rows.layout import PADDING, Field, Layout, Rows
from credit_jax.parallel.rows.take import take_rows, take_static

_PLAN_CACHE = 4096

# What rows are moved for, as profiles and compiled programs name it.
HALO, WINDOWS, RELAYOUT = "halo", "windows", "relayout"


def reshard(field: Field, need: Layout, *, scope: str = RELAYOUT) -> Field:
    """The same field with shard d holding the global rows `need.rows[d]`.

    Args:
        field: local array and the rows it holds.
        need: rows needed on each shard; -1 (padding) becomes a row of zeros. Its
            `size` may differ from that of the field, whose rows `need.rows` names.
        scope: what the rows are for: HALO (the reach of a convolution), WINDOWS (of
            attention) or RELAYOUT (anything else).

    Returns:
        Field on layout `need`.

    Raises:
        ValueError: a wanted row is held by no shard.
    """
    with jax.named_scope(scope):
        return Field(_reshard(field.data, field.layout, need), need)


def _reshard(x: Array, have: Layout, need: Layout) -> Array:
    if need.rows == have.rows:
        return _zero_padding(x, have)
    if have.num_shards == 1:
        return _reshard_alone(x, have, need)
    window = _plan_window(have, need)
    if window is not None:
        return _reshard_halo(x, have, need, window)
    return _reshard_exchange(x, have, _plan_exchange(have.rows, need.rows))


def _zero_padding(x: Array, layout: Layout) -> Array:
    """The rows as they are, but zeros where the wanted ones may be rows of zeros."""
    valid = np.asarray(layout.rows) >= 0
    return _mask(x, valid, layout.axis, layout.dim)


def _reshard_alone(x: Array, have: Layout, need: Layout) -> Array:
    where = {row: i for i, row in enumerate(have.rows[0]) if row >= 0}
    where[PADDING] = PADDING
    _check_rows_exist(where, need.rows)
    return take_static(x, [where[row] for row in need.rows[0]], have.dim)


def _check_rows_exist(where: Mapping[int, object], needed: Rows) -> None:
    absent = sorted({row for rows in needed for row in rows if row >= 0} - set(where))
    if absent:
        raise ValueError(
            f"rows {absent[:5]} of the {len(absent)} wanted ones are held by no shard; "
            f"the field holds rows 0 to {max(where)}"
        )


# ---------------------------------------------------------------- halo transport


@dataclass(frozen=True)
class Window:
    """One row range a shard, cut from [low rows | own block | high rows].

    Attributes:
        low, high: rows to add before and after the own block of every shard.
        starts: where the stretch of each shard starts in that buffer; negative or past
            its end means rows of zeros beyond a pole.
        valid: (shards, rows) which wanted rows are real; None if the others are zero.
    """

    low: int
    high: int
    starts: tuple[int, ...]
    valid: np.ndarray | None


@dataclass(frozen=True)
class RowRange:
    """Ascending rows: entry i is row `first + i`; the real ones are low to high."""

    first: int
    low: int
    high: int


@lru_cache(_PLAN_CACHE)
def _plan_window(have: Layout, need: Layout) -> Window | None:
    """The halo plan, or None where a shard wants no one stretch or one too far away."""
    if not have.is_block:
        return None
    if max(map(max, need.rows)) >= have.size:
        return None
    row_ranges = [_row_range(rows) for rows in need.rows]
    if any(isinstance(row_range, str) for row_range in row_ranges):
        return None
    block, num = have.length, have.num_shards
    active = {d: s for d, s in enumerate(row_ranges) if isinstance(s, RowRange)}
    low = max([0, *(d * block - s.low for d, s in active.items())])
    high = max([0, *(s.high - (d + 1) * block + 1 for d, s in active.items())])
    if -(-low // block) + -(-high // block) > max(2, num // 2):
        return None
    starts = {d: s.first - d * block + low for d, s in active.items()}
    idle_start = next(iter(starts.values()), 0)
    valid = _window_mask(have, need, active)
    return Window(
        low, high, tuple(starts.get(d, idle_start) for d in range(num)), valid
    )


def _row_range(rows: tuple[int, ...]) -> RowRange | str | None:
    """The stretch of a shard, None if it wants none, "irregular" if not ascending."""
    array = np.asarray(rows)
    real = np.flatnonzero(array >= 0)
    if not len(real):
        return None
    first = int(array[real[0]] - real[0])
    if (array[real] != first + real).any():
        return "irregular"
    return RowRange(first, int(array[real[0]]), int(array[real[-1]]))


def _window_mask(
    have: Layout, need: Layout, active: dict[int, RowRange]
) -> np.ndarray | None:
    """Real rows, or None where every zero row comes out of the exchange as zero.

    Rows past the first and the last shard are zeros (`ppermute` gives them to whom
    nobody sends); other rows that should be zero need a mask.
    """
    valid = np.asarray(need.rows) >= 0
    if len(active) < need.num_shards:
        return valid
    end = have.num_shards * have.length
    for d, row_range in active.items():
        rows = row_range.first + np.arange(need.length)
        if (~valid[d] & (rows >= 0) & (rows < end)).any():
            return valid
    return None


def _reshard_halo(x: Array, have: Layout, need: Layout, plan: Window) -> Array:
    block, dim = have.length, have.dim
    below = [
        _from_neighbor(x, have, hop, slice(block - width, block))
        for hop, width in _hops(plan.low, block)
    ]
    above = [
        _from_neighbor(x, have, -hop, slice(0, width))
        for hop, width in _hops(plan.high, block)
    ]
    pieces = [*reversed(below), x, *above]
    buffer = jnp.concatenate(pieces, dim) if len(pieces) > 1 else x
    row_range = _cut(buffer, plan.starts, need.length, have.axis, dim)
    return _mask(row_range, plan.valid, have.axis, dim)


def _hops(width: int, block: int) -> list[tuple[int, int]]:
    """(neighbor distance, rows wanted from it) to cover `width` rows."""
    count = -(-width // block)
    return [(k, min(block, width - (k - 1) * block)) for k in range(1, count + 1)]


def _from_neighbor(x: Array, have: Layout, hop: int, rows: slice) -> Array:
    piece = lax.slice_in_dim(x, rows.start, rows.stop, axis=have.dim)
    num = have.num_shards
    pairs = [(s, s + hop) for s in range(num) if 0 <= s + hop < num]
    return lax.ppermute(piece, have.axis, pairs)


def _cut(
    buffer: Array, starts: tuple[int, ...], length: int, axis: str | None, dim: int
) -> Array:
    """`length` rows from `starts[shard]` on, with zeros outside of the buffer."""
    size = buffer.shape[dim]
    before = max(0, -min(starts))
    after = max(0, max(starts) + length - size)
    if before or after:
        widths = [(0, 0)] * buffer.ndim
        widths[dim] = (before, after)
        buffer = jnp.pad(buffer, widths)
    index = np.asarray(starts)[:, None] + before + np.arange(length)
    return take_rows(buffer, index, axis, dim)


def _mask(x: Array, valid: np.ndarray | None, axis: str | None, dim: int) -> Array:
    if valid is None or valid.all():
        return x
    shape = [1] * x.ndim
    shape[dim] = valid.shape[1]
    mine = jnp.asarray(valid)[axis_index(axis)].reshape(shape)
    return jnp.where(mine, x, jnp.zeros((), x.dtype))


# ------------------------------------------------- permute and all_to_all transports


# (source, destination) shards of a permutation.
Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Exchange:
    """Which local rows go where.

    Attributes:
        pieces: (pairs, index (shards, rows)): local rows that each shard sends to its
            partner in `pairs` (source, destination), or keeps where there are no
            pairs; or, for all_to_all, one piece with pairs None and an index of shape
            (shards, shards * rows), by destination.
        position: (shards, rows) where each wanted row is among the received ones.
        valid: (shards, rows) which wanted rows are real.
    """

    pieces: tuple[tuple[Pairs | None, np.ndarray], ...]
    position: np.ndarray
    valid: np.ndarray


@lru_cache(_PLAN_CACHE)
def _plan_exchange(have: Rows, need: Rows) -> Exchange:
    where = {row: (s, i) for s, rows in enumerate(have) for i, row in enumerate(rows)}
    where.pop(PADDING, None)
    _check_rows_exist(where, need)
    num = len(need)
    wanted = {
        (s, d): sorted({r for r in need[d] if r >= 0 and where[r][0] == s})
        for s in range(num)
        for d in range(num)
    }
    pairs = sum(bool(rows) for (s, d), rows in wanted.items() if s != d)
    if 2 * pairs > num * (num - 1):
        pieces, slots = _pieces_all_to_all(wanted, where, num)
    else:
        pieces, slots = _pieces_permute(wanted, where, num)
    shape = (num, len(need[0]))
    position, valid = np.zeros(shape, np.int32), np.zeros(shape, bool)
    for d, rows in enumerate(need):
        for i, row in enumerate(rows):
            if row >= 0:
                position[d, i], valid[d, i] = slots[d][row], True
    return Exchange(pieces, position, valid)


def _pieces_all_to_all(wanted: dict, where: dict, num: int) -> tuple[tuple, list]:
    width = max(map(len, wanted.values()))
    index = np.zeros((num, num, width), np.int32)
    slots: list[dict[int, int]] = [{} for _ in range(num)]
    for (s, d), rows in wanted.items():
        for j, row in enumerate(rows):
            index[s, d, j] = where[row][1]
            slots[d][row] = s * width + j
    return ((None, index.reshape(num, -1)),), slots


def _pieces_permute(wanted: dict, where: dict, num: int) -> tuple[tuple, list]:
    pieces, base = [], 0
    slots: list[dict[int, int]] = [{} for _ in range(num)]
    for pairs in _rounds(wanted, num):
        sends: dict[int, list[int]] = {s: [] for s in range(num)}
        sends |= {s: wanted[s, d] for s, d in pairs}
        width = max(map(len, sends.values()))
        index = np.zeros((num, width), np.int32)
        for s, d in pairs:
            for j, row in enumerate(wanted[s, d]):
                index[s, j] = where[row][1]
                slots[d][row] = base + j
        moved = tuple((s, d) for s, d in pairs if s != d)
        pieces.append((moved, _fill_idle(index, sends)))
        base += width
    return tuple(pieces), slots


def _rounds(wanted: dict, num: int) -> list[list[tuple[int, int]]]:
    """What stays, then permutations: no more of them than a shard has partners.

    They color the edges of a bipartite graph (Koenig): a pair that finds no round free
    at both ends swaps two rounds along the path of pairs that are in its way. Pairs
    come by falling number of rows, so that those of one round have about as many.
    """
    stays = [(s, s) for s in range(num) if wanted[s, s]]
    moves = [(s, d) for (s, d), rows in wanted.items() if rows and s != d]
    moves.sort(key=lambda pair: (-len(wanted[pair]), pair[1] - pair[0], pair[0]))
    to: list[dict[int, int]] = [{} for _ in range(num)]  # of each source, by round
    by: list[dict[int, int]] = [{} for _ in range(num)]  # of each destination
    degree = max(
        Counter([(0, s) for s, _ in moves] + [(1, d) for _, d in moves]).values(),
        default=0,
    )
    for s, d in moves:
        free_s, free_d = (
            [r for r in range(degree) if r not in busy] for busy in (to[s], by[d])
        )
        both = [r for r in free_s if r in free_d]
        if not both:
            _swap_rounds(to, by, d, free_s[0], free_d[0])
            both = free_s
        to[s][both[0]], by[d][both[0]] = d, s
    rounds = [[(s, d[r]) for s, d in enumerate(to) if r in d] for r in range(degree)]
    return [stays, *rounds] if stays else rounds


def _swap_rounds(
    to: list[dict[int, int]], by: list[dict[int, int]], d: int, one: int, other: int
) -> None:
    """Swap two rounds along the path from destination `d`, which is idle in `other`."""
    path: list[tuple[int, int, int]] = []
    here, now = d, one
    while now in by[here]:
        s = by[here][now]
        path.append((s, here, now))
        if other not in to[s]:
            break
        here = to[s][other]
        path.append((s, here, other))
    for s, end, now in path:
        del to[s][now], by[end][now]
    for s, end, now in path:
        new = other if now == one else one
        to[s][new], by[end][new] = end, s


def _fill_idle(index: np.ndarray, sends: dict[int, list[int]]) -> np.ndarray:
    """Idle shards send what a busy one sends, which keeps the index uniform."""
    busy = next(s for s, rows in sends.items() if len(rows) == index.shape[1])
    idle = [s for s, rows in sends.items() if not rows]
    index[idle] = index[busy]
    return index


def _reshard_exchange(x: Array, have: Layout, plan: Exchange) -> Array:
    axis, dim = have.axis, have.dim
    received = []
    for pairs, index in plan.pieces:
        piece = take_rows(x, index, axis, dim)
        if pairs is None:
            piece = lax.all_to_all(piece, axis, dim, dim, tiled=True)
        elif pairs:
            piece = lax.ppermute(piece, axis, pairs)
        received.append(piece)
    buffer = jnp.concatenate(received, dim) if len(received) > 1 else received[0]
    rows = take_rows(buffer, plan.position, axis, dim)
    return _mask(rows, plan.valid, axis, dim)
