"""Interpolation of sharded fields, as torch.nn.functional.interpolate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from credit_jax.ops import area_taps, linear_taps, nearest_taps
from credit_jax.ops.resize import Taps
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.domain.rearrange import dim_size
from credit_jax.parallel.rows.layout import Field, Layout
from credit_jax.parallel.rows.reshard import in_rows, reshard
from credit_jax.parallel.rows.take import take_rows


def resize_bilinear(
    field: Field,
    size: Sequence[int],
    *,
    align_corners: bool = False,
    out: Layout | None = None,
) -> Field:
    """Interpolates linearly to `size` (lat, lon) points, as torch's mode bilinear.

    Dims whose size does not change are copied.

    Args:
        field: (batch, lat, lon, channel), or with further spatial dims (trilinear);
            sharded along any spatial dim.
        size: number of output points of every spatial dim.
        align_corners: as in torch.
        out: layout of the output rows of the sharded dim; None for equal blocks.

    Raises:
        ValueError: `size` does not have one entry for each spatial dim.
    """
    dtype = np.float64 if field.data.dtype == jnp.float64 else np.float32

    def taps(size_in: int, size_out: int) -> Taps:
        return linear_taps(size_in, size_out, align_corners=align_corners, dtype=dtype)

    return _resize(field, size, taps, out)


def resize_nearest(
    field: Field,
    size: Sequence[int],
    *,
    half_pixel: bool = False,
    out: Layout | None = None,
) -> Field:
    """Resizes as torch's mode nearest: output i is input floor(i * size_in / size_out).

    Args:
        field: (batch, lat, lon, channel), or with further spatial dims; sharded along
            any spatial dim.
        size: number of output points of every spatial dim.
        half_pixel: whether i + 0.5 takes the place of i (torch's mode nearest-exact).
        out: layout of the output rows of the sharded dim; None for equal blocks.

    Raises:
        ValueError: `size` does not have one entry for each spatial dim.
    """

    def taps(size_in: int, size_out: int) -> Taps:
        low = nearest_taps(size_in, size_out, half_pixel=half_pixel)
        return Taps(low, low, np.zeros(size_out))

    return _resize(field, size, taps, out)


def resize_area(
    field: Field, size: Sequence[int], *, out: Layout | None = None
) -> Field:
    """Resizes to at least as many points as torch's mode area; see `area_taps`.

    Args:
        field: (batch, lat, lon, channel), or with further spatial dims; sharded along
            any spatial dim.
        size: number of output points of every spatial dim.
        out: layout of the output rows of the sharded dim; None for equal blocks.

    Raises:
        ValueError: `size` has fewer points than the field, or does not have one entry
            for each spatial dim.
    """
    return _resize(field, size, area_taps, out)


def _resize(
    field: Field,
    size: Sequence[int],
    make_taps: Callable[[int, int], Taps],
    out: Layout | None,
) -> Field:
    """Interpolates along the sharded dim first, then along the others."""
    field = in_rows(field)
    split = field.layout.dim
    spatial = field.data.ndim - 2
    if len(size) != spatial:
        raise ValueError(
            f"size is {tuple(size)}; expected {spatial} numbers, one for each spatial "
            f"dim of the field {field.data.shape}"
        )
    dims = range(1, spatial + 1)
    for dim in sorted(dims, key=lambda dim: dim != split):
        points = size[dim - 1]
        leading = dim_size(field, dim)
        if dim == split and (points != leading or out is not None):
            target = field.layout.to_blocks(points) if out is None else out
            field = _resize_rows(field, make_taps(leading, points), target)
        elif points != leading:
            data, taps = field.data, make_taps(leading, points)
            if taps.is_copy:
                data = _take_nearest(data, taps.low[None], None, dim)
            else:
                lead = (slice(None),) * dim
                weight = _along(jnp.asarray(taps.weight), data.ndim, dim)
                data = _blend(data[*lead, taps.low], data[*lead, taps.high], weight)
            field = field.like(data)
    return field


def _resize_rows(field: Field, taps: Taps, target: Layout) -> Field:
    """Reshards to the input rows that output rows need, then interpolates locally."""
    low = np.zeros((target.num_shards, target.length), np.int32)
    high, needed = np.zeros_like(low), list[Sequence[int]]()
    for d, rows in enumerate(np.asarray(target.rows)):
        real = rows >= 0
        first = taps.low[rows[real]].min(initial=field.layout.size)
        last = taps.high[rows[real]].max(initial=-1)
        needed.append(range(first, last + 1))
        low[d, real] = taps.low[rows[real]] - first
        high[d, real] = taps.high[rows[real]] - first
    local = reshard(field, field.layout.with_rows(needed, field.layout.size)).data
    axis, dim = target.axis, target.dim
    if taps.is_copy:
        return Field(_take_nearest(local, low, axis, dim), target)
    weight = np.asarray([[taps.weight[max(g, 0)] for g in h] for h in target.rows])
    mine = _along(jnp.asarray(weight)[axis_index(axis)], local.ndim, dim)
    data = _blend(
        take_rows(local, low, axis, dim), take_rows(local, high, axis, dim), mine
    )
    return Field(data, target)


def _take_nearest(data: Array, index: np.ndarray, axis: str | None, dim: int) -> Array:
    """`take_rows`, but without a gather if each row is repeated equally often."""
    rows, count = data.shape[dim], index.shape[1]
    times = count // rows
    if times < 2 or (index != np.arange(count) // times).any():
        return take_rows(data, index, axis, dim)
    shape = data.shape
    apart = data.reshape(*shape[: dim + 1], 1, *shape[dim + 1 :])
    wide = (*shape[: dim + 1], times, *shape[dim + 1 :])
    return jnp.broadcast_to(apart, wide).reshape(*shape[:dim], count, *shape[dim + 1 :])


def _along(values: Array, num_dims: int, dim: int) -> Array:
    """Reshapes a vector to broadcast along dim `dim` of `num_dims`."""
    return values.reshape((1,) * dim + (-1,) + (1,) * (num_dims - dim - 1))


def _blend(low: Array, high: Array, weight: Array) -> Array:
    weight = weight.astype(low.dtype)
    return low * (1 - weight) + high * weight
