"""The transports for rows in any order: one `all_to_all`, or several `ppermute`.

One `all_to_all` is used if most shards need rows of most others, as the groups of long
attention do. Otherwise there are as many `ppermute` as a shard has partners, each
between pairs of shards that exchange rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from credit_jax.parallel.collectives import keep_moved
from credit_jax.parallel.rows.layout import PADDING, Layout, Rows
from credit_jax.parallel.rows.take import keep_rows, take_rows

# (source, destination) shards of a permutation.
Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ExchangePattern:
    """The local rows that each shard sends, and the positions of received rows.

    Attributes:
        pieces: one (pairs, index) for each `ppermute`; index (shards, rows) has the
            local rows that a shard sends to its partner in `pairs` (source,
            destination), or keeps if `pairs` is empty. For `all_to_all`, a single piece
            with pairs None and an index (shards, shards * rows), by destination. An
            index is padded with -1.
        position: (shards, rows), position of each needed row among the received rows;
            -1 for zeros.
        valid: (shards, rows), whether a needed row is not zeros.
    """

    pieces: tuple[tuple[Pairs | None, np.ndarray], ...]
    position: np.ndarray
    valid: np.ndarray


def exchange_pattern(have: Rows, need: Rows) -> ExchangePattern:
    """Returns how rows move from the shards that have them to those that need them.

    Args:
        have, need: global rows of every shard; -1 in `need` is a row of zeros.

    Raises:
        ValueError: no shard has a needed row.
    """
    where = {row: (s, i) for s, rows in enumerate(have) for i, row in enumerate(rows)}
    where.pop(PADDING, None)
    check_rows_exist(where, need)
    num = len(need)
    rows_by_pair: dict[tuple[int, int], list[int]] = {
        (s, d): [] for s in range(num) for d in range(num)
    }
    for d, rows in enumerate(need):
        for row in sorted(set(rows) - {PADDING}):
            rows_by_pair[where[row][0], d].append(row)
    needed = rows_by_pair
    # An all-to-all moves as many rows between every two shards as between the two that
    # exchange most; below half of the pairs that is mostly padding.
    pairs = sum(bool(rows) for (s, d), rows in needed.items() if s != d)
    if 2 * pairs > num * (num - 1):
        pieces, slots = _pieces_all_to_all(needed, where, num)
    else:
        pieces, slots = _pieces_permute(needed, where, num)
    shape = (num, len(need[0]))
    position, valid = np.full(shape, PADDING, np.int32), np.zeros(shape, bool)
    for d, rows in enumerate(need):
        for i, row in enumerate(rows):
            if row >= 0:
                position[d, i], valid[d, i] = slots[d][row], True
    return ExchangePattern(pieces, position, valid)


def exchange_rows(x: Array, have: Layout, pattern: ExchangePattern) -> Array:
    """Returns the needed rows.

    Args:
        x: local array on the layout `have`.
        have: layout of `x`.
        pattern: as returned by `exchange_pattern`.
    """
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


def _pieces_all_to_all(needed: dict, where: dict, num: int) -> tuple[tuple, list]:
    width = max(map(len, needed.values()))
    index = np.full((num, num, width), PADDING, np.int32)
    slots: list[dict[int, int]] = [{} for _ in range(num)]
    for (s, d), rows in needed.items():
        for j, row in enumerate(rows):
            index[s, d, j] = where[row][1]
            slots[d][row] = s * width + j
    return ((None, index.reshape(num, -1)),), slots


def _pieces_permute(needed: dict, where: dict, num: int) -> tuple[tuple, list]:
    pieces, base = [], 0
    slots: list[dict[int, int]] = [{} for _ in range(num)]
    for pairs in _rounds(needed, num):
        sends: dict[int, list[int]] = {s: [] for s in range(num)}
        sends |= {s: needed[s, d] for s, d in pairs}
        width = max(map(len, sends.values()))
        index = np.full((num, width), PADDING, np.int32)
        for s, d in pairs:
            for j, row in enumerate(needed[s, d]):
                index[s, j] = where[row][1]
                slots[d][row] = base + j
        moved = tuple((s, d) for s, d in pairs if s != d)
        pieces.append((moved, _fill_idle(index, sends)))
        base += width
    return tuple(pieces), slots


def _rounds(needed: dict, num: int) -> list[list[tuple[int, int]]]:
    """Returns the rows that stay, then permutations, with the least number of rounds.

    This is an edge coloring of a bipartite graph (Koenig): if no round is free at both
    ends of a pair, two rounds are swapped along their alternating path. Pairs are
    sorted by number of rows, so the pairs of a round have similar numbers.
    """
    stays = [(s, s) for s in range(num) if needed[s, s]]
    moves = [(s, d) for (s, d), rows in needed.items() if rows and s != d]
    moves.sort(key=lambda pair: (-len(needed[pair]), pair[1] - pair[0], pair[0]))
    to: list[dict[int, int]] = [{} for _ in range(num)]  # of each source, by round
    by: list[dict[int, int]] = [{} for _ in range(num)]  # of each destination
    # Koenig's theorem: the largest number of partners of a shard is enough rounds.
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
    """Swaps two rounds along the path from destination `d`, idle in `other`."""
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
    """Gives idle shards the index of a busy one, so `take_rows` may find one slice."""
    busy = next(s for s, rows in sends.items() if len(rows) == index.shape[1])
    idle = [s for s, rows in sends.items() if not rows]
    index[idle] = index[busy]
    return index
