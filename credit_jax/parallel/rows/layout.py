"""Fields and their row layouts: the global rows of each shard, known at trace time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.rows.take import take_rows

Rows = tuple[tuple[int, ...], ...]

PADDING = -1


@dataclass(frozen=True)
class Layout:
    """The global rows of every shard along one array dim."""

    # The global row of each local row, by shard, or the index of each local strip; -1
    # is padding. Strip s of row r has the index r * strips + s, shards have strips in
    # any order, and arrays are (batch, strips, points of a strip, channel). `reshard`
    # converts between rows and strips; pointwise functions work on both.
    rows: Rows
    size: int  # number of global rows
    axis: str | None = None  # of the mesh, over which the rows are sharded
    dim: int = 1  # array dim of the rows (1: latitude of NHWC, 2: longitude)
    strips: int = 1  # number of strips of neighboring points of every row
    # Layouts are static data of every `Field` and keys of caches, with up to thousands
    # of rows: they are hashed often, and the numbers only once.
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
        """Number of rows of a local array, including padding."""
        return len(self.rows[0])

    @cached_property
    def is_block(self) -> bool:
        """Whether shard d has rows d*length, d*length + 1, ..., then padding."""
        in_order = block_rows(self.size, self.num_shards, self.length)
        return self.strips == 1 and self.rows == in_order

    @cached_property
    def is_whole(self) -> bool:
        """Whether every shard has all rows, in order."""
        return self.strips == 1 and set(self.rows) == {tuple(range(self.size))}

    @cached_property
    def has_padding(self) -> bool:
        return any(row < 0 for rows in self.rows for row in rows)

    def with_rows(
        self, rows_per_shard: Iterable[Sequence[int]], size: int, strips: int = 1
    ) -> Layout:
        """Returns another layout on the same axis and dim, padded to equal lengths."""
        rows = [tuple(r) for r in rows_per_shard]
        length = max(max(map(len, rows)), 1)
        padded = tuple(r + (PADDING,) * (length - len(r)) for r in rows)
        return Layout(padded, size, self.axis, self.dim, strips)

    def in_strips(self, strips: int) -> Layout:
        """Returns the layout of the same points with every row cut into strips."""
        return self if strips == self.strips else _cut_rows(self, strips)

    def to_blocks(self, size: int | None = None) -> Layout:
        """Returns blocks of ceil(size / n) rows over the same n shards."""
        rows = self.size if size is None else size
        return Layout(block_rows(rows, self.num_shards), rows, self.axis, self.dim)

    def of_shard(self, per_shard: np.ndarray) -> Array:
        """Returns the value of this shard from an array indexed by shard."""
        return jnp.asarray(per_shard)[axis_index(self.axis)]

    def local(self, per_row: np.ndarray | Array, fill: float | int = 0) -> Array:
        """Returns the values of local rows or strips from those by global row."""
        index = np.asarray(self.rows) // self.strips
        values = take_rows(jnp.asarray(per_row), index, self.axis, 0)
        if not self.has_padding:
            return values
        real = self.real_rows().reshape((-1,) + (1,) * (values.ndim - 1))
        return jnp.where(real, values, jnp.asarray(fill, values.dtype))

    def real_rows(self) -> Bool[Array, " rows"]:
        """Returns a mask of the local rows or strips, False for padding."""
        return self.of_shard(np.asarray(self.rows) >= 0)

    def global_rows(self) -> Array:
        """Returns the global row of each local row or strip, -1 for padding, int32."""
        return self.of_shard(np.asarray(self.rows, np.int32) // self.strips)

    def columns(self, points: int) -> Int[Array, "rows points"]:
        """Returns the global column of every point, int32; (1, points) in rows."""
        point = jnp.arange(points)[None]
        if self.strips == 1:
            return point
        strip = self.of_shard(np.asarray(self.rows, np.int32) % self.strips)
        return strip[:, None] * points + point


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
    return layout.with_rows(strips_per_shard, layout.size, strips)


def block_rows(size: int, num_shards: int, length: int | None = None) -> Rows:
    """Returns equal blocks: shard d has rows d * length to (d + 1) * length - 1."""
    length = max(-(-size // num_shards), 1) if length is None else length
    return tuple(
        tuple(g if g < size else PADDING for g in range(d * length, (d + 1) * length))
        for d in range(num_shards)
    )


def block_layout(
    size: int, num_shards: int = 1, axis: str | None = None, dim: int = 1
) -> Layout:
    """Returns the layout of inputs and outputs: blocks of ceil(size / num_shards)."""
    return Layout(block_rows(size, num_shards), size, axis, dim)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Field:
    """A local array and its row layout, a pytree with a static layout."""

    # Rows are along `layout.dim`; NHWC (batch, lat, lon, channel).
    data: Array
    layout: Layout = field(metadata={"static": True})

    @property
    def row_points(self) -> int:
        """Number of points of a complete row of a field (batch, lat, lon, channel)."""
        return self.data.shape[2] * self.layout.strips

    def like(self, data: Array) -> Field:
        """Returns a field with another array on the same layout."""
        return Field(data, self.layout)

    def mask(self) -> Bool[Array, "*shape"]:
        """Returns a mask, False for padding rows, that broadcasts against `data`."""
        shape = [1] * self.data.ndim
        shape[self.layout.dim] = self.layout.length
        return self.layout.real_rows().reshape(shape)
