"""Fields and their row layouts: which global rows each shard holds, at trace time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from credit_jax.parallel.collectives import axis_index

Rows = tuple[tuple[int, ...], ...]

PADDING = -1


@dataclass(frozen=True)
class Layout:
    """The rows of every shard along one array dim.

    A layout may be in strips: every row is cut into as many strips of neighboring
    points, strip s of row r has the number r * strips + s, and shards hold strips in
    any order, (batch, strips, points of a strip, channel). `reshard` moves between rows
    and strips; functions of single points need not know which a field is in.

    Attributes:
        rows: for each shard the global row of each local row, or the number of each
            local strip; -1 is padding.
        size: number of global rows.
        axis: mesh axis the rows are split over; None on one device.
        dim: array dim that holds the rows (1: latitude of NHWC, 2: longitude).
        strips: of a row; 1: the layout is in rows.
    """

    rows: Rows
    size: int
    axis: str | None = None
    dim: int = 1
    strips: int = 1
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        lengths = {len(rows) for rows in self.rows}
        assert len(lengths) == 1, f"shards hold different numbers of rows: {lengths}"
        assert self.num_shards == 1 or self.axis, "several shards need an axis"
        assert self.strips == 1 or self.dim == 1, "strips are those of latitude rows"
        fields = (self.rows, self.size, self.axis, self.dim, self.strips)
        object.__setattr__(self, "_hash", hash(fields))

    def __hash__(self) -> int:
        return self._hash

    @property
    def num_shards(self) -> int:
        return len(self.rows)

    @property
    def length(self) -> int:
        """Number of rows of a local array, padding included."""
        return len(self.rows[0])

    @cached_property
    def is_block(self) -> bool:
        """Whether shard d holds rows d*length, d*length + 1, ..., then padding."""
        in_order = block_rows(self.size, self.num_shards, self.length)
        return self.strips == 1 and self.rows == in_order

    @cached_property
    def is_whole(self) -> bool:
        """Whether every shard holds all rows, in order."""
        return self.strips == 1 and set(self.rows) == {tuple(range(self.size))}

    @cached_property
    def has_padding(self) -> bool:
        return any(row < 0 for rows in self.rows for row in rows)

    def with_rows(self, rows_per_shard: Iterable[Sequence[int]], size: int) -> Layout:
        """Another layout on the same axis and dim; shards are padded to one length.

        Args:
            rows_per_shard: global rows of each shard; -1 is padding.
            size: number of global rows.
        """
        return Layout(_padded(rows_per_shard), size, self.axis, self.dim)

    def with_strips(
        self, strips_per_shard: Iterable[Sequence[int]], size: int, strips: int
    ) -> Layout:
        """Another layout on the same axis and dim, in strips.

        Args:
            strips_per_shard: numbers of the strips of each shard; -1 is padding.
            size: number of global rows.
            strips: of a row.
        """
        rows = _padded(strips_per_shard)
        return Layout(rows, size, self.axis, self.dim, strips)

    def in_strips(self, strips: int) -> Layout:
        """The same points in the same order, with every row cut into strips."""
        return self if strips == self.strips else _cut_rows(self, strips)

    def to_blocks(self, size: int | None = None) -> Layout:
        """The block layout over the same shards: equal blocks of ceil(size / n) rows.

        Args:
            size: number of global rows; default that of this layout.
        """
        rows = self.size if size is None else size
        return Layout(block_rows(rows, self.num_shards), rows, self.axis, self.dim)

    def of_shard(self, per_shard: np.ndarray) -> Array:
        """This shard's value of an array indexed by shard."""
        return jnp.asarray(per_shard)[axis_index(self.axis)]

    def local(self, per_row: np.ndarray | Array, fill: float | int = 0) -> Array:
        """This shard's values of an array indexed by global row.

        Args:
            per_row: (size, ...) values of every global row.
            fill: value for padding rows.

        Returns:
            (rows or strips, ...): a strip has the value of its row.
        """
        index = np.maximum(np.asarray(self.rows), 0) // self.strips
        local_rows = jnp.asarray(index)[axis_index(self.axis)]
        values = jnp.asarray(per_row)[local_rows]
        if not self.has_padding:
            return values
        real = self.real_rows().reshape((-1,) + (1,) * (values.ndim - 1))
        return jnp.where(real, values, jnp.asarray(fill, values.dtype))

    def real_rows(self) -> Bool[Array, " rows"]:
        """Which local rows of this shard are not padding."""
        real = np.asarray(self.rows) >= 0
        return jnp.asarray(real)[axis_index(self.axis)]

    def global_rows(self) -> Array:
        """Global row of each local row or strip, -1 for padding, int32."""
        rows = np.asarray(self.rows, np.int32) // self.strips
        return jnp.asarray(rows)[axis_index(self.axis)]

    def columns(self, points: int) -> Int[Array, "rows points"]:
        """Global column of every point of each local strip, or of all rows, int32.

        Args:
            points: of a local row or strip.
        """
        point = jnp.arange(points)[None]
        if self.strips == 1:
            return point
        strip = np.asarray(self.rows, np.int32) % self.strips
        return jnp.asarray(strip)[axis_index(self.axis)][:, None] * points + point


def _padded(rows_per_shard: Iterable[Sequence[int]]) -> Rows:
    rows = [tuple(r) for r in rows_per_shard]
    length = max(max(map(len, rows)), 1)
    return tuple(r + (PADDING,) * (length - len(r)) for r in rows)


@lru_cache(4096)
def _cut_rows(layout: Layout, strips: int) -> Layout:
    assert layout.strips == 1, f"a layout in {layout.strips} strips has no {strips}"
    strips_per_shard = (
        [
            row * strips + strip if row >= 0 else PADDING
            for row in rows
            for strip in range(strips)
        ]
        for rows in layout.rows
    )
    return layout.with_strips(strips_per_shard, layout.size, strips)


def block_rows(size: int, num_shards: int, length: int | None = None) -> Rows:
    """Equal blocks: shard d holds rows [d * length, (d + 1) * length), -1 past the end.

    Args:
        size: number of global rows.
        num_shards: number of blocks.
        length: rows of a block; default ceil(size / num_shards).
    """
    length = max(-(-size // num_shards), 1) if length is None else length
    return tuple(
        tuple(g if g < size else PADDING for g in range(d * length, (d + 1) * length))
        for d in range(num_shards)
    )


def block_layout(
    size: int, num_shards: int = 1, axis: str | None = None, dim: int = 1
) -> Layout:
    """The layout of inputs and outputs: equal blocks of ceil(size / num_shards) rows.

    Args:
        size: number of global rows.
        num_shards: number of blocks.
        axis: mesh axis of the shards; None on one device.
        dim: array dim of the rows.

    >>> block_layout(5, 2, "domain").rows
    ((0, 1, 2), (3, 4, -1))
    """
    return Layout(block_rows(size, num_shards), size, axis, dim)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Field:
    """A local array and its row layout.

    Attributes:
        data: local array, rows along `layout.dim`; NHWC (batch, lat, lon, channel).
        layout: the global rows of every shard.
    """

    data: Array
    layout: Layout = field(metadata={"static": True})

    @property
    def row_points(self) -> int:
        """Points of a whole row of a field (batch, lat, lon, channel)."""
        return self.data.shape[2] * self.layout.strips

    def like(self, data: Array) -> Field:
        """Another array on the same layout."""
        return Field(data, self.layout)

    def mask(self) -> Bool[Array, "*shape"]:
        """Which rows are not padding, shaped to broadcast against `data`."""
        shape = [1] * self.data.ndim
        shape[self.layout.dim] = self.layout.length
        return self.layout.real_rows().reshape(shape)
