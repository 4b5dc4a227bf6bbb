"""Moves rows between shards: halos by `ppermute`, any order of rows by `all_to_all`.

One `all_to_all` is used if most shards need rows of most others, as the groups of long
attention do. Otherwise there are as many `ppermute` as a shard has partners, each
between pairs of shards that exchange rows.

An operation gives the global rows that each shard needs as a `Layout`: in any order,
with repeats, or as padding (-1, a row of zeros). `reshard` converts a field to that
layout. Its gradient is the transpose derived by JAX.

A halo is used if each shard needs one range of rows around its own block, as
convolutions do. All shards send the same number of their first and last rows, the
largest that any shard needs; the range is then sliced from [low | own block | high].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from credit_jax.ops.space_to_depth import pad_dim
from credit_jax.parallel.collectives import SourceTarget, keep_moved, ppermute_each
from credit_jax.parallel.rows.layout import PADDING, Field, Layout, Rows
from credit_jax.parallel.rows.take import keep_rows, take_rows, take_static


@dataclass(frozen=True)
class HaloPattern:
    """Plan to assemble one range of rows from the own block and those of neighbors."""

    low: int  # numbers of rows to add before and after each block
    high: int
    # Of the row range of each shard in the extended block. A range may extend beyond
    # it, where it has zeros beyond a pole.
    starts: tuple[int, ...]
    valid: np.ndarray | None  # (shards, rows); None if no mask is needed


def halo_pattern(have: Layout, need: Layout) -> HaloPattern | None:
    """Returns the pattern from `have` to `need`, or None for other transports."""
    # Halos extend blocks by rows that are one ascending range, of few neighbors.
    if not have.is_block or max(map(max, need.rows)) >= have.size:
        return None
    block, num, low, high = have.length, have.num_shards, 0, 0
    firsts = dict[int, int]()  # row of entry 0; negative if the range has padding first
    for d, rows in enumerate(map(np.asarray, need.rows)):
        real = np.flatnonzero(rows >= 0)
        if not len(real):
            continue
        firsts[d] = int(rows[real[0]] - real[0])
        if (rows[real] != firsts[d] + real).any():
            return None
        low = max(low, d * block - int(rows[real[0]]))
        high = max(high, int(rows[real[-1]]) - (d + 1) * block + 1)
    # Each neighbor is a transfer of its own, in which all shards send as much as the
    # one that needs most.
    if -(-low // block) + -(-high // block) > max(2, num // 2):
        return None
    starts = {d: first - d * block + low for d, first in firsts.items()}
    # Shards that need nothing take the start of another one: if all starts are equal,
    # the rows are cut by a static slice.
    idle_start = next(iter(starts.values()), 0)
    return HaloPattern(
        low,
        high,
        tuple(starts.get(d, idle_start) for d in range(num)),
        _valid_rows(have, need, firsts),
    )


def exchange_halo(x: Array, have: Layout, need: Layout, pattern: HaloPattern) -> Array:
    """Returns the rows of `need`, for which `pattern` was made, from a local block."""
    block, dim = have.length, have.dim
    below, above = _hops(pattern.low, block), _hops(pattern.high, block)
    # In the order of the rows: the farthest neighbor below has the first ones.
    sent = [(hop, slice(block - width, block)) for hop, width in reversed(below)]
    sent += [(-hop, slice(0, width)) for hop, width in above]
    shards = range(have.num_shards)
    parts = [lax.slice_in_dim(x, rows.start, rows.stop, axis=dim) for _, rows in sent]
    pairs = [[(s, s + hop) for s in shards if s + hop in shards] for hop, _ in sent]
    received = [keep_moved(part) for part in ppermute_each(parts, have.axis, pairs)]
    pieces = [*received[: len(below)], x, *received[len(below) :]]
    extended = jnp.concatenate(pieces, dim) if len(pieces) > 1 else x
    # What a shard needs beyond the array are zeros.
    starts, length = np.asarray(pattern.starts), need.length
    leading = max(0, -int(starts.min()))
    after = max(0, int(starts.max()) + length - extended.shape[dim])
    extended = pad_dim(extended, dim, (leading, after))
    index = starts[:, None] + leading + np.arange(length)
    rows = take_rows(extended, index, have.axis, dim)
    return keep_rows(rows, pattern.valid, have.axis, dim)


def _valid_rows(
    have: Layout, need: Layout, firsts: Mapping[int, int]
) -> np.ndarray | None:
    """Returns which rows are not padding, or None if no mask is needed."""
    valid = np.asarray(need.rows) >= 0
    if len(firsts) < need.num_shards:
        return valid
    # Rows beyond the first and the last shard are zeros, as `ppermute` gives zeros to
    # shards that receive nothing. Other padding needs a mask.
    end = have.num_shards * have.length
    for d, first in firsts.items():
        rows = first + np.arange(need.length)
        if (~valid[d] & (rows >= 0) & (rows < end)).any():
            return valid
    return None


def _hops(width: int, block: int) -> list[tuple[int, int]]:
    """Returns (distance, rows) of the neighbors that together give `width` rows."""
    count = -(-width // block)
    return [(k, min(block, width - (k - 1) * block)) for k in range(1, count + 1)]


# The pairs of a permutation.
Pairs = tuple[SourceTarget, ...]
# See `ExchangePattern.pieces`.
Pieces = tuple[tuple[Pairs | None, np.ndarray], ...]
# Of each shard: global row -> its position among the received rows.
Received = list[dict[int, int]]


@dataclass(frozen=True)
class ExchangePattern:
    """The local rows that each shard sends, and the positions of received rows."""

    # One (pairs, index) for each `ppermute`; index (shards, rows) has the local rows
    # that a shard sends to its partner in `pairs` (source, destination), or keeps if
    # `pairs` is empty. For `all_to_all`, a single piece with pairs None and an index
    # (shards, shards * rows), by destination. An index is padded with -1.
    pieces: Pieces
    # (shards, rows), position of each needed row among the received ones; -1 for zeros.
    position: np.ndarray
    valid: np.ndarray  # (shards, rows), whether a needed row is not zeros


def exchange_pattern(have: Rows, need: Rows) -> ExchangePattern:
    """Returns how rows move from the shards that have them to those that need them."""
    moves = _Moves.of(have, need)
    # An all-to-all moves as many rows between every two shards as between the two that
    # exchange most; below half of the pairs that is mostly padding.
    num = moves.num_shards
    used = sum(s != d for (s, d), rows in moves.rows.items() if rows)
    by_all = 2 * used > num * (num - 1)
    pieces, received = _all_to_all(moves) if by_all else _permutations(moves)
    needed = np.array(need)
    position = np.full(needed.shape, PADDING, np.int32)
    for shard, i in np.argwhere(needed >= 0).tolist():
        position[shard, i] = received[shard][need[shard][i]]
    return ExchangePattern(pieces, position, needed >= 0)


def exchange_rows(x: Array, have: Layout, pattern: ExchangePattern) -> Array:
    """Returns the needed rows."""
    axis, dim = have.axis, have.dim
    received = []
    for pairs, index in pattern.pieces:
        piece = take_rows(x, index, axis, dim)
        if pairs is None:
            piece = keep_moved(lax.all_to_all(piece, axis, dim, dim, tiled=True))
        elif pairs:
            piece = keep_moved(lax.ppermute(piece, axis, pairs))
        received.append(piece)
    # Nothing is received if no shard needs a row.
    buffer = jnp.concatenate(received, dim) if received else x
    rows = take_rows(buffer, pattern.position, axis, dim)
    return keep_rows(rows, pattern.valid, axis, dim)


def check_rows_exist(existing: Iterable[int], needed: Rows) -> None:
    """Raises ValueError if a needed row is not in `existing`."""
    existing = set(existing)
    absent = sorted({row for rows in needed for row in rows if row >= 0} - existing)
    if absent:
        raise ValueError(
            f"rows {absent[:5]} of the {len(absent)} needed ones are on no shard; "
            f"the field has rows 0 to {max(existing)}"
        )


@dataclass(frozen=True)
class _Moves:
    """The rows that shards need of one another, and of themselves."""

    num_shards: int
    local: Mapping[int, int]  # global row -> its index on the shard that has it
    rows: Mapping[SourceTarget, Sequence[int]]  # of every two shards, ascending

    @classmethod
    def of(cls, have: Rows, need: Rows) -> _Moves:
        """The moves from one layout to another; see `exchange_pattern`."""
        source, local = dict[int, int](), dict[int, int]()
        for shard, rows in enumerate(have):
            for index, row in enumerate(rows):
                if row != PADDING:
                    source[row], local[row] = shard, index
        check_rows_exist(source, need)
        shards = range(len(need))
        pairs: dict[SourceTarget, list[int]] = {
            (s, d): [] for s in shards for d in shards
        }
        for destination, rows in enumerate(need):
            for row in sorted({*rows} - {PADDING}):
                pairs[source[row], destination].append(row)
        return cls(len(need), local, pairs)


def _all_to_all(moves: _Moves) -> tuple[Pieces, Received]:
    """All rows in one piece, in which every two shards have equally many."""
    num = moves.num_shards
    width = max(map(len, moves.rows.values()))
    index = np.full((num, num, width), PADDING, np.int32)
    received: Received = [{} for _ in range(num)]
    for (source, destination), rows in moves.rows.items():
        local = [moves.local[row] for row in rows]
        index[source, destination, : len(rows)] = local
        # What a shard receives is in the order of the sources.
        first = source * width
        received[destination] |= {row: first + i for i, row in enumerate(rows)}
    return ((None, index.reshape(num, -1)),), received


def _permutations(moves: _Moves) -> tuple[Pieces, Received]:
    """The rows in one piece for each round, in which a shard has one partner."""
    num, first = moves.num_shards, 0
    pieces: list[tuple[Pairs | None, np.ndarray]] = []
    received: Received = [{} for _ in range(num)]
    for pairs in _rounds(moves.rows, num):
        width = max(len(moves.rows[pair]) for pair in pairs)
        index = np.full((num, width), PADDING, np.int32)
        for pair in pairs:
            (source, destination), rows = pair, moves.rows[pair]
            index[source, : len(rows)] = [moves.local[row] for row in rows]
            received[destination] |= {row: first + i for i, row in enumerate(rows)}
        # Idle shards have the index of a busy one, so `take_rows` may find one slice.
        busy = next(s for s, d in sorted(pairs) if len(moves.rows[s, d]) == width)
        index[[*{*range(num)} - {s for s, _ in pairs}]] = index[busy]
        pieces.append((tuple((s, d) for s, d in pairs if s != d), index))
        first += width
    return tuple(pieces), received


def _rounds(
    rows: Mapping[SourceTarget, Sequence[int]], num: int
) -> list[list[SourceTarget]]:
    """Returns the rows that stay, then permutations, in the fewest rounds."""
    # Shards as sources, and shards as destinations, are the nodes of a bipartite graph
    # whose edges are the pairs that exchange rows. A round is a color of edges: at each
    # node a color occurs once. By Koenig's theorem there are as many colors as the node
    # with the most edges has, and this colors one edge after another with them.
    stays = [(shard, shard) for shard in range(num) if rows[shard, shard]]
    moves = [(s, d) for (s, d), moved in rows.items() if moved and s != d]
    # Pairs with many rows first, so that those of a round have similar numbers: the
    # largest number is sent by all.
    moves.sort(key=lambda pair: (-len(rows[pair]), pair[1] - pair[0], pair[0]))
    partners = Counter([("source", s) for s, _ in moves])
    partners += Counter([("destination", d) for _, d in moves])
    num_rounds = max(partners.values(), default=0)
    # Of each shard: round -> its partner, as a source and as a destination.
    sends_to: list[dict[int, int]] = [{} for _ in range(num)]
    receives_from: list[dict[int, int]] = [{} for _ in range(num)]
    for source, destination in moves:
        idle_source, idle_destination = (
            [turn for turn in range(num_rounds) if turn not in busy]
            for busy in (sends_to[source], receives_from[destination])
        )
        turn = next((turn for turn in idle_source if turn in idle_destination), None)
        if turn is None:
            turn, other = idle_source[0], idle_destination[0]
            _swap_rounds(sends_to, receives_from, destination, turn, other)
        sends_to[source][turn], receives_from[destination][turn] = destination, source
    rounds = [
        [(s, partner[turn]) for s, partner in enumerate(sends_to) if turn in partner]
        for turn in range(num_rounds)
    ]
    return [stays, *rounds] if stays else rounds


def _swap_rounds(
    sends_to: list[dict[int, int]],
    receives_from: list[dict[int, int]],
    destination: int,
    turn: int,
    other: int,
) -> None:
    """Makes a destination that is idle in the round `other` idle in `turn` instead."""
    # Its pair of `turn` moves to `other`. There its source may have a pair already,
    # which moves to `turn`, and so on: along this path, whose rounds alternate and
    # which never comes to a node twice, the two rounds are swapped.
    path: list[tuple[int, int, int]] = []
    while turn in receives_from[destination]:
        source = receives_from[destination][turn]
        path.append((source, destination, turn))
        if other not in sends_to[source]:
            break
        destination = sends_to[source][other]
        path.append((source, destination, other))
    for source, end, leading in path:
        del sends_to[source][leading], receives_from[end][leading]
    for source, end, leading in path:
        after = other if leading == turn else turn
        sends_to[source][after], receives_from[end][after] = end, source


# Names of scopes in profiles and compiled programs, by the purpose of the exchange.
HALO, WINDOWS, RELAYOUT = "halo", "windows", "relayout"

_MAX_PATTERNS = 4096
_halo_pattern = lru_cache(_MAX_PATTERNS)(halo_pattern)
_exchange_pattern = lru_cache(_MAX_PATTERNS)(exchange_pattern)


def reshard(field: Field, need: Layout, *, scope: str = RELAYOUT) -> Field:
    """Returns the field with rows `need.rows[d]` of it on shard d; -1 gives zeros."""
    # In profiles and programs: HALO (neighborhoods of convolutions), WINDOWS, RELAYOUT.
    with jax.named_scope(scope):
        return Field(_reshard(field.data, field.layout, need), need)


def in_rows(field: Field) -> Field:
    """Returns the field in rows: in equal blocks if it is in strips, else unchanged."""
    layout = field.layout
    return field if layout.strips == 1 else reshard(field, layout.to_blocks())


def _reshard(x: Array, have: Layout, need: Layout) -> Array:
    strips = max(have.strips, need.strips)
    if strips > 1:
        # A layout in rows is converted to one of consecutive strips.
        batch, rows, points, *remainder = x.shape
        if have.strips == 1:
            x = x.reshape(batch, rows * strips, points // strips, *remainder)
        have, after = have.in_strips(strips), need.in_strips(strips)
        if have.rows != after.rows:
            x = exchange_rows(x, have, _exchange_pattern(have.rows, after.rows))
        if need.strips == 1:
            x = x.reshape(batch, need.length, -1, *remainder)
        return x
    if need.rows == have.rows:
        # Padding rows have any value in the field, but must be zeros in the result.
        return keep_rows(x, np.asarray(have.rows) >= 0, have.axis, have.dim)
    if have.num_shards == 1:
        local = {row: i for i, row in enumerate(have.rows[0]) if row >= 0}
        check_rows_exist(local, need.rows)
        local[PADDING] = PADDING
        return take_static(x, [local[row] for row in need.rows[0]], have.dim)
    halo = _halo_pattern(have, need)
    if halo is not None:
        return exchange_halo(x, have, need, halo)
    return exchange_rows(x, have, _exchange_pattern(have.rows, need.rows))
