"""Layouts of a stage with window attention: complete rows, or strips of rows.

If the number of shards does not divide the bands of short windows, or the groups of
rows of long windows, shards are idle. Rows are then cut into strips of neighboring
points, and shards have complete short windows of strips, or complete groups of strips,
of which there are many more.

Short windows are numbered band by band, with those whose columns share a group of long
windows next to each other, and distributed in contiguous ranges, so a shard has about
the rows of a block layout. A group of long windows goes to a shard that has most of it
already, which limits communication to few shards: with two rows of windows in a group,
to the pairs d and d + n / 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from credit_jax.parallel.domain.windows import group_layout, window_layout
from credit_jax.parallel.rows.layout import Layout

# Load of the busiest shard, relative to an even share: up to EVEN, rows are not cut
# into strips; groups are distributed with up to NEARLY_EVEN to limit communication.
EVEN, NEARLY_EVEN = 1.05, 1.07


@dataclass(frozen=True)
class Windows:
    """Short and long windows of a stage, of a field of rows and columns."""

    rows: int
    columns: int
    # Tokens along each side; 1 if each point is a window. A short window has
    # neighboring points. Those of a long window are apart by `columns // long`, and by
    # `rows // long`, so that it spans the field: it has the points of one remainder of
    # the column, and of the row.
    short: int
    long: int

    def layouts(self, layout: Layout) -> tuple[Layout, Layout]:
        """Returns the layouts of complete short windows, and complete long windows."""
        return _layouts(layout.to_blocks(self.rows), self)

    @property
    def strip(self) -> int:
        """Number of points of a strip, of which both kinds of windows consist."""
        # The points of a strip are in one short window, and in long windows that are
        # moved together, a group: those of its rows and of the remainders of its
        # columns.
        if self.long == 1 or self.columns_meet:
            return self.short
        return math.gcd(self.short, self.columns // self.long)

    @property
    def columns_meet(self) -> bool:
        """Whether the columns of a short window are in the same groups of long ones."""
        return self.columns // self.long % self.short == 0

    def short_of_strips(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the order of strips by short windows, and the window of each."""
        strips = self.columns // self.strip
        row, strip = np.divmod(np.arange(self.rows * strips), strips)
        column = strip * self.strip // self.short
        # Shards get ranges of these numbers. Windows of a band whose columns have the
        # same remainders, and so are in the same groups of long windows, have one
        # number: if they were on two shards, these groups would have strips of both.
        # With 12 columns, short windows of 2, long ones of 3, whose points are 4 apart:
        #     column        0  1   2  3   4  5   6  7   8  9  10 11
        #     remainder     0  1   2  3   0  1   2  3   0  1   2  3
        #     window          0      1      2      3      4      5
        #     place           0      3      1      4      2      5
        #     number          0      1      0      1      0      1
        index, step = column, 1
        if self.long > 1 and self.columns_meet:
            # Windows until the remainders are those of the first one again.
            apart = self.columns // self.long // self.short
            index, step = column % apart * self.long + column // apart, self.long
        band = self.columns // self.short
        number = (row // self.short * band + index) // step
        within = self.short // self.strip
        # The last key is the first to compare: band, window, row and strip within it,
        # as `partition` reads them.
        keys = (strip % within, row % self.short, column, row // self.short)
        return np.lexsort(keys), number

    def long_of_strips(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the order of strips by groups of long windows, and their groups."""
        strips = self.columns // self.strip
        row, strip = np.divmod(np.arange(self.rows * strips), strips)
        rows, strips = self.rows // self.long, strips // self.long
        number = row % rows * strips + strip % strips
        keys = (strip // strips, row // rows, strip % strips, row % rows)
        return np.lexsort(keys), number


@lru_cache(256)
def _layouts(blocks: Layout, windows: Windows) -> tuple[Layout, Layout]:
    """Returns layouts of rows if these are even or cannot be cut, else of strips."""
    short = window_layout(blocks, windows.rows, windows.short)
    long, all_short = short, windows.long == 1
    if not all_short:
        long = group_layout(blocks, windows.rows, windows.long)
    even = EVEN * windows.rows / blocks.num_shards
    fits = blocks.dim == 1 and windows.strip > 1
    if blocks.num_shards == 1 or not fits or max(short.length, long.length) <= even:
        return short, long
    if windows.long > 1 and long.length <= even and not windows.columns_meet:
        # Long windows stay in rows, so that strips need fit short windows only.
        windows = replace(windows, long=1)
    num = blocks.num_shards
    order, number = windows.short_of_strips()
    total = int(number.max()) + 1
    # The shard of each strip; all numbers have as many, so that equal ranges are equal
    # shares.
    ends = [shard * total // num for shard in range(1, num)]
    owner = np.searchsorted(ends, number, side="right")
    short = _in_order(blocks, windows, owner, order)
    if windows.long > 1:
        order, group = windows.long_of_strips()
        strip_counts = np.zeros((int(group.max()) + 1, num), int)
        np.add.at(strip_counts, (group, owner), 1)
        # A shard may have some more groups than an even share, if fewer strips move.
        even = len(strip_counts) / num
        spare = NEARLY_EVEN if windows.columns_meet else 1.0
        room = max(math.ceil(even), math.floor(spare * even))
        owner = _deal(strip_counts, room)[group]
        long = _in_order(blocks, windows, owner, order)
    elif all_short:
        long = short
    return short, long


def _deal(strip_counts: np.ndarray, room: int) -> np.ndarray:
    """Assigns each group to a shard that has most of its strips and is not yet full."""
    # Groups with the same strip counts are distributed evenly over the shards with most
    # strips, starting with the groups that have the fewest such shards.
    # strip_counts: (groups, shards), number of strips of a group that a shard has.
    # Returns (groups,), shard of each group.
    kinds: dict[tuple[int, ...], list[int]] = {}
    for group, counts in enumerate(strip_counts.tolist()):
        kinds.setdefault(tuple(counts), []).append(group)
    load = [0] * strip_counts.shape[1]
    shard_of = np.zeros(len(strip_counts), int)
    # Groups with few choices first: later ones still find room elsewhere.
    for counts, groups in sorted(
        kinds.items(), key=lambda kind: kind[0].count(max(kind[0]))
    ):
        for group in groups:
            free = [shard for shard, num in enumerate(load) if num < room]
            shard = min(free, key=lambda shard: (-counts[shard], load[shard]))
            shard_of[group] = shard
            load[shard] += 1
    return shard_of


def _in_order(
    blocks: Layout, windows: Windows, owner: np.ndarray, order: np.ndarray
) -> Layout:
    """Returns the layout of the strips that each shard owns, in the given order."""
    strips_per_shard = [
        order[owner[order] == shard] for shard in range(blocks.num_shards)
    ]
    strips = windows.columns // windows.strip
    return blocks.with_rows(
        [s.tolist() for s in strips_per_shard], windows.rows, strips
    )
