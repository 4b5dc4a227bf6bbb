"""Layouts of a stage with window attention: rows where they divide, strips elsewhere.

Bands of short windows, or groups of rows, that the number of shards does not divide
leave shards idle. Windows and groups of points are many more: a row is cut into strips
of neighboring points, and shards hold whole short windows of strips, or whole groups.

Short windows are numbered band by band, those whose columns meet in a group of long
windows side by side, and cut into stretches: a shard holds about the rows that it has
in a block layout. A group goes to a shard that holds most of it, so that a window moves
between few shards: with two rows of windows in a group between d and d + n / 2 alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from credit_jax.parallel.domain.windows import group_layout, window_layout
from credit_jax.parallel.rows.layout import Layout

# Rows of the busiest shard over an even share up to which rows stay whole; and groups
# of the busiest shard where each has its partners on as few shards as can be.
EVEN, NEARLY_EVEN = 1.05, 1.07


@dataclass(frozen=True)
class Windows:
    """The windows of a stage.

    Attributes:
        rows, columns: of the field.
        short, long: tokens along each side of a window.
    """

    rows: int
    columns: int
    short: int
    long: int

    def layouts(self, layout: Layout) -> tuple[Layout, Layout]:
        """Layouts of whole short windows, and of whole long ones.

        Args:
            layout: gives the shards, axis and dim.
        """
        return _layouts(layout.to_blocks(self.rows), self)

    @property
    def strip(self) -> int:
        """Points of a strip: whole short windows and groups of columns are of them."""
        if self.long == 1 or self.columns_meet:
            return self.short
        return math.gcd(self.short, self.columns // self.long)

    @property
    def columns_meet(self) -> bool:
        """Whether the columns of a short window are in long windows together."""
        return self.columns // self.long % self.short == 0

    @property
    def _strips(self) -> int:
        return self.columns // self.strip

    def short_of_strips(self) -> tuple[np.ndarray, np.ndarray]:
        """(order, number) of each strip by its short window.

        Windows whose number is the same stay together.
        """
        row, strip = self._positions()
        column = strip * self.strip // self.short
        place, step = column, 1
        if self.long > 1 and self.columns_meet:
            apart = self.columns // self.long // self.short
            place, step = column % apart * self.long + column // apart, self.long
        band = self.columns // self.short
        number = (row // self.short * band + place) // step
        within = self.short // self.strip
        keys = (strip % within, row % self.short, column, row // self.short)
        return np.lexsort(keys), number

    def long_of_strips(self) -> tuple[np.ndarray, np.ndarray]:
        """(order, number) of each strip by its group of long windows."""
        row, strip = self._positions()
        rows, strips = self.rows // self.long, self._strips // self.long
        number = row % rows * strips + strip % strips
        keys = (strip // strips, row // rows, strip % strips, row % rows)
        return np.lexsort(keys), number

    def _positions(self) -> tuple[np.ndarray, np.ndarray]:
        return np.divmod(np.arange(self.rows * self._strips), self._strips)


@lru_cache(256)
def _layouts(blocks: Layout, windows: Windows) -> tuple[Layout, Layout]:
    """Rows if they are even, or if strips would be single points."""
    short = window_layout(blocks, windows.rows, windows.short)
    long, all_short = short, windows.long == 1
    if not all_short:
        long = group_layout(blocks, windows.rows, windows.long)
    even = EVEN * windows.rows / blocks.num_shards
    fits = blocks.dim == 1 and windows.strip > 1
    if blocks.num_shards == 1 or not fits or max(short.length, long.length) <= even:
        return short, long
    if windows.long > 1 and long.length <= even and not windows.columns_meet:
        windows = replace(windows, long=1)
    owner, short = _short_strips(blocks, windows)
    if windows.long > 1:
        long = _long_strips(blocks, windows, owner)
    elif all_short:
        long = short
    return short, long


def _short_strips(blocks: Layout, windows: Windows) -> tuple[np.ndarray, Layout]:
    """The shard of each strip, and their layout by short windows."""
    num = blocks.num_shards
    order, number = windows.short_of_strips()
    total = int(number.max()) + 1
    ends = [shard * total // num for shard in range(1, num)]
    owner = np.searchsorted(ends, number, side="right")
    return owner, _in_order(blocks, windows, owner, order)


def _long_strips(blocks: Layout, windows: Windows, owner: np.ndarray) -> Layout:
    """Their layout by groups, given the shard of each strip by short windows."""
    order, number = windows.long_of_strips()
    strip_counts = np.zeros((int(number.max()) + 1, blocks.num_shards), int)
    np.add.at(strip_counts, (number, owner), 1)
    even = len(strip_counts) / blocks.num_shards
    spare = NEARLY_EVEN if windows.columns_meet else 1.0
    room = max(math.ceil(even), math.floor(spare * even))
    return _in_order(blocks, windows, _deal(strip_counts, room)[number], order)


def _deal(strip_counts: np.ndarray, room: int) -> np.ndarray:
    """A shard for each group, one of those that hold most of it while there is room.

    Groups that the same shards hold are dealt out evenly among them, those with the
    fewest such shards first.

    Args:
        strip_counts: (groups, shards) how many strips of a group each shard has.
        room: most groups of a shard.
    """
    kinds: dict[tuple[int, ...], list[int]] = {}
    for group, counts in enumerate(strip_counts.tolist()):
        kinds.setdefault(tuple(counts), []).append(group)

    def choices(counts: Sequence[int]) -> int:
        return counts.count(max(counts))

    load = [0] * strip_counts.shape[1]
    shard_of = np.zeros(len(strip_counts), int)
    for counts, groups in sorted(kinds.items(), key=lambda kind: choices(kind[0])):
        for group in groups:
            free = [shard for shard, groups in enumerate(load) if groups < room]
            shard = min(free, key=lambda shard: (-counts[shard], load[shard]))
            shard_of[group] = shard
            load[shard] += 1
    return shard_of


def _in_order(
    blocks: Layout, windows: Windows, owner: np.ndarray, order: np.ndarray
) -> Layout:
    """The strips of each shard in a global order."""
    strips_per_shard = [
        order[owner[order] == shard] for shard in range(blocks.num_shards)
    ]
    strips = windows.columns // windows.strip
    return blocks.with_strips(
        [s.tolist() for s in strips_per_shard], windows.rows, strips
    )
