"""The halo transport: rows of neighboring shards, one `ppermute` for each neighbor.

It is used if each shard needs one range of rows around its own block, as convolutions
do. All shards send the same number of their first and last rows, the largest that any
shard needs; the needed range is then sliced from [low rows | own block | high rows].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from credit_jax.ops.padding import pad_dim
from credit_jax.parallel.collectives import keep_moved, ppermute_each
from credit_jax.parallel.rows.layout import Layout
from credit_jax.parallel.rows.take import keep_rows, take_rows


@dataclass(frozen=True)
class HaloPattern:
    """Plan to assemble one range of rows from the own block and those of neighbors.

    Attributes:
        low, high: numbers of rows to add before and after the block of every shard.
        starts: the start of the row range of each shard in the extended block. A
            range may extend beyond the block, where it has zeros beyond a pole.
        valid: (shards, rows), whether a row is not zeros; None if no mask is needed.
    """

    low: int
    high: int
    starts: tuple[int, ...]
    valid: np.ndarray | None


def halo_pattern(have: Layout, need: Layout) -> HaloPattern | None:
    """Returns the pattern from `have` to `need`, or None for other transports.

    It is None if `have` is not a block layout, if a shard needs rows that are not one
    ascending range, or if ranges extend over too many neighbors.
    """
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
    """Returns the rows of `need`.

    Args:
        x: local block.
        have: block layout of `x`.
        need: layout of the result, for which `pattern` was made.
        pattern: as returned by `halo_pattern`.
    """
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
    """Returns which rows are not padding, or None if padding is zeros without a mask.

    Rows beyond the first and the last shard are zeros, as `ppermute` gives zeros to
    shards that receive nothing. Other padding needs a mask.
    """
    valid = np.asarray(need.rows) >= 0
    if len(firsts) < need.num_shards:
        return valid
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
