"""Shards arrays over a mesh and gathers them: rows over domain, samples over dp.

A sharded array has blocks of equally many rows on all shards, padded with copies of the
last row. With a `Mesh`, functions take global arrays, outside of `shard_map`; with
`MeshAxes`, they take local arrays, inside of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Shaped

from credit_jax.parallel.mesh.device_mesh import MeshAxes, local_coords
from credit_jax.parallel.rows.layout import Field, block_layout
from credit_jax.parallel.rows.take import take_rows, take_static

ROW_DIM = -2


@dataclass(frozen=True)
class LocalRows:
    """Consecutive rows of a grid that a process has."""

    first: int  # index in the grid
    size: int  # number of rows of the grid
    count: int | None = None  # None for all from the first on

    @property
    def part(self) -> slice | None:
        """Slice of the grid that selects the rows; None for all rows of the grid."""
        if self.count in (None, self.size):
            return None
        return slice(self.first, self.first + self.count)

    def block(self, num_domain: int) -> int:
        """Returns the rows of each of `num_domain` equal blocks, including padding."""
        return max(-(-self.size // num_domain), 1)

    def take(self, x: np.ndarray, begin: int, end: int, dim: int) -> np.ndarray:
        """Returns rows begin, ..., end - 1 of the padded grid, from rows `x`."""
        if end <= self.size:
            index = [slice(None)] * x.ndim
            index[dim] = slice(begin - self.first, end - self.first)
            return x[tuple(index)]
        positions = np.minimum(np.arange(begin, end), self.size - 1) - self.first
        return np.take(x, positions, axis=dim)


def batch_spec(axes: MeshAxes, *, stacked: bool = False) -> PartitionSpec:
    """Returns the PartitionSpec of fields, or of those of stacked micro-batches."""
    return array_spec(axes, 6 if stacked else 5, sample_dim=1 if stacked else 0)


def place_batch(
    arrays: Mapping[str, Any],
    mesh: Mesh,
    *,
    local_dp_ranks: Sequence[int] | None = None,
    shared: bool = False,
    rows: LocalRows | None = None,
) -> dict[str, Any]:
    """Shards a batch over the mesh; rows are padded to equal blocks with the last row.

    Args:
        arrays: fields (batch, channel, time, lat, lon) and vectors (batch, size), with
            or without a leading dim of micro-batches, or pytrees of them. They have the
            samples of this process's dp ranks, in the order of ranks.
        mesh: the device mesh.
        local_dp_ranks: dp ranks whose samples this process has; None for all.
        shared: whether `arrays` has the samples of one rank, and every rank gets them.
        rows: rows that the fields have; None for all.

    Raises:
        ValueError: an array has another number of dims, or the number of samples is not
            a multiple of the number of ranks.

    >>> x = np.ones((2, 7, 1, 6, 10), np.float32)
    >>> credit_jax.place_batch({"x": x}, mesh)["x"].shape
    (2, 7, 1, 6, 10)
    """

    def index(path: Any, x: np.ndarray) -> Array:
        if x.ndim not in (2, 3, 5, 6):
            name = jax.tree_util.keystr(path, simple=True, separator=": ")
            raise ValueError(
                f"{name} has shape {x.shape}; expected a field (batch, channel, time, "
                "lat, lon) or a vector (batch, size), perhaps with micro-batches "
                "stacked in front"
            )
        return place_samples(
            x,
            mesh,
            sample_dim=1 if x.ndim in (3, 6) else 0,
            row_dim=ROW_DIM if x.ndim >= 5 else None,
            local_dp_ranks=local_dp_ranks,
            shared=shared,
            rows=rows,
        )

    return jax.tree_util.tree_map_with_path(index, dict(arrays))


def shard_tensor(
    x: Shaped[np.ndarray | Array, "*shape"],
    mesh: Mesh | MeshAxes,
    *,
    dim: int = ROW_DIM,
) -> Shaped[Array, "*blocks"]:
    """Shards an array into blocks of ceil(size / n) rows, padded with the last row."""
    # Inside of `shard_map` the array is the same on all shards. Differs from CREDIT:
    # the number of rows need not be a multiple of n.
    if isinstance(mesh, MeshAxes):
        layout = block_layout(x.shape[dim], mesh.num_domain, mesh.domain, dim % x.ndim)
        rows_per_shard = np.asarray(layout.rows)
        index = np.where(rows_per_shard < 0, layout.size - 1, rows_per_shard)
        return take_rows(jnp.asarray(x), index, mesh.domain, layout.dim)
    axes = MeshAxes.from_mesh(mesh)
    spec = array_spec(axes, x.ndim, sample_dim=None, row_dim=dim)
    x = pad_rows(x, axes.num_domain, dim)
    sharding = NamedSharding(mesh, spec)
    if isinstance(x, jax.Array):
        return jax.device_put(x, sharding)
    return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def gather_tensor(
    x: Shaped[np.ndarray | Array, "*blocks"],
    mesh: Mesh | MeshAxes,
    *,
    dim: int = ROW_DIM,
    size: int | None = None,
) -> Shaped[Array, "*shape"]:
    """Gathers `size` rows of a sharded array: the inverse of `shard_tensor`."""
    axes = mesh if isinstance(mesh, MeshAxes) else MeshAxes.from_mesh(mesh)
    dim = dim % x.ndim
    inside = isinstance(mesh, MeshAxes)
    total = x.shape[dim] * (axes.num_domain if inside else 1)
    # Without a size, padding rows are included.
    rows = total if size is None else size
    blocks = block_layout(rows, axes.num_domain, axes.domain, dim)
    if rows > total or blocks.length * axes.num_domain != total:
        raise ValueError(
            f"size is {rows}, which is {blocks.length} rows on each of "
            f"{axes.num_domain} domain shards, but there are {total} rows in all"
        )
    if isinstance(mesh, MeshAxes):
        return gather_rows(Field(jnp.asarray(x), blocks))
    full = jnp.asarray(x)
    if isinstance(full.sharding, NamedSharding) and axes.domain is not None:
        parts: list[Any] = [
            tuple(name for name in part if name != axes.domain) or None
            if isinstance(part, tuple)
            else (None if part == axes.domain else part)
            for part in full.sharding.spec
        ]
        full = jax.device_put(full, NamedSharding(mesh, PartitionSpec(*parts)))
    return lax.slice_in_dim(full, 0, rows, axis=dim)


def gather_rows(field: Field) -> Shaped[Array, "*shape"]:
    """All-gathers the `layout.size` rows of a field, in global order, to all shards."""
    layout, x = field.layout, field.data
    if layout.axis is not None:
        x = lax.all_gather(x, layout.axis, axis=layout.dim, tiled=True, to="invarying")
    rows_per_shard = [row for rows in layout.rows for row in rows]
    origin = {row: i for i, row in enumerate(rows_per_shard)}
    return take_static(x, [origin[row] for row in range(layout.size)], layout.dim)


def shard_batch(
    batch: Mapping[str, Any],
    mesh: Mesh,
    *,
    spatial_dims_5d: int = ROW_DIM,
    spatial_dims_4d: int = ROW_DIM,
    local_dp_ranks: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Shards every array of 4 or 5 dims of a batch; other entries are unchanged."""
    # Differs from CREDIT: samples are sharded, too, as CREDIT's loader does; and the
    # number of rows need not be a multiple of the number of shards.
    dims = {5: spatial_dims_5d, 4: spatial_dims_4d}
    placed = {}
    for name, x in batch.items():
        if hasattr(x, "__array__") and np.ndim(x) in dims:
            placed[name] = place_samples(
                np.asarray(x),
                mesh,
                row_dim=dims[np.ndim(x)],
                local_dp_ranks=local_dp_ranks,
            )
        else:
            placed[name] = x
    return placed


def place_samples(
    x: Shaped[np.ndarray, "*shape"],
    mesh: Mesh,
    *,
    sample_dim: int = 0,
    row_dim: int | None = ROW_DIM,
    # As in `place_batch`; `rows` has at least those of this process's devices.
    local_dp_ranks: Sequence[int] | None = None,
    shared: bool = False,
    rows: LocalRows | None = None,
) -> Shaped[Array, "*blocks"]:
    """Shards a host array of a process's samples: they over dp, rows over domain."""
    axes = MeshAxes.from_mesh(mesh)
    ranks = tuple(range(axes.num_data)) if local_dp_ranks is None else local_dp_ranks
    samples = x.shape[sample_dim] * (len(ranks) if shared else 1)
    if samples % len(ranks):
        raise ValueError(
            f"a batch of {samples} samples cannot be split over {len(ranks)} "
            "data-parallel ranks; choose a multiple"
        )
    per_rank = samples // len(ranks)
    shape = list(x.shape)
    if row_dim is not None:
        rows = rows or LocalRows(0, x.shape[row_dim])
        shape[row_dim] = rows.block(axes.num_domain) * axes.num_domain
    shape[sample_dim] = per_rank * axes.num_data
    spec = array_spec(axes, x.ndim, sample_dim=sample_dim, row_dim=row_dim)

    def shard(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None, "the shape is not that of a scalar"
        # `index` is of the global array; `x` has the samples of some ranks alone, one
        # rank after another.
        start, stop, _ = index[sample_dim].indices(shape[sample_dim])
        first = 0 if shared else ranks.index(start // per_rank) * per_rank
        local = list(index)
        local[sample_dim] = slice(first, first + stop - start)
        if row_dim is None or rows is None:
            return x[tuple(local)]
        begin, end, _ = index[row_dim].indices(shape[row_dim])
        local[row_dim] = slice(None)
        return rows.take(x[tuple(local)], begin, end, row_dim)

    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(tuple(shape), sharding, shard)


def rows_of(mesh: Mesh, size: int) -> LocalRows:
    """Returns the rows of this process's devices, of a grid of `size` rows."""
    axes = MeshAxes.from_mesh(mesh)
    if axes.domain is None:
        return LocalRows(0, size, size)
    dim = mesh.axis_names.index(axes.domain)
    shards = [coords[dim] for coords in local_coords(mesh)]
    length = LocalRows(0, size).block(axes.num_domain)
    # Blocks that are only padding need the last row.
    first = min(min(shards) * length, size - 1)
    return LocalRows(first, size, min((max(shards) + 1) * length, size) - first)


def array_spec(
    axes: MeshAxes,
    num_dims: int,
    *,
    sample_dim: int | None = 0,
    row_dim: int | None = ROW_DIM,
) -> PartitionSpec:
    """Returns the PartitionSpec with samples over dp and rows over domain."""
    parts: list[Any] = [None] * num_dims
    if sample_dim is not None:
        parts[sample_dim] = axes.data or None
    if row_dim is not None:
        parts[row_dim] = axes.domain
    return PartitionSpec(*parts)


def pad_rows(x: Any, num_domain: int, dim: int = ROW_DIM) -> Any:
    """Pads the rows to `num_domain` equal blocks by repeating the last row."""
    rows = x.shape[dim]
    missing = max(-(-rows // num_domain), 1) * num_domain - rows
    if not missing:
        return x
    numpy = jnp if isinstance(x, jax.Array) else np
    last = numpy.take(x, np.full(missing, rows - 1), axis=dim)
    return numpy.concatenate([x, last], axis=dim)
