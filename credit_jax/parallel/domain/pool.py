"""Pooling and interpolation of sharded fields."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops import area_taps, linear_taps, nearest_taps
from credit_jax.ops.conv import NO_PADDING, Padding
from credit_jax.ops.custom_vjp import pvary
from credit_jax.ops.pool import (
    HEIGHT,
    WIDTH,
    PoolingWindows,
    adaptive_means,
    adaptive_windows,
    along,
    mean_of_windows,
    padded_windows,
    pool_windows,
    window_max,
    window_sum,
)
from credit_jax.ops.resize import Taps
from credit_jax.ops.space_to_depth import IntPair
from credit_jax.parallel.collectives import axis_index, sum_parts
from credit_jax.parallel.domain.conv import KernelGeometry, conv_rows
from credit_jax.parallel.domain.norm import num_points
from credit_jax.parallel.domain.output_layout import (
    consecutive_layout,
    in_row_order,
    spatial_dim,
    to_layout,
)
from credit_jax.parallel.domain.rearrange import dim_size, lat_lon_dims
from credit_jax.parallel.reductions import field_sum
from credit_jax.parallel.rows.exchange import HALO, in_rows, reshard
from credit_jax.parallel.rows.layout import Field, Layout
from credit_jax.parallel.rows.take import take_rows


def avg_pool2d_field(
    field: Field,
    kernel: IntPair,
    *,
    stride: IntPair | None = None,
    padding: Padding = NO_PADDING,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    out: Layout | None = None,
) -> Field:
    """`ops.pool.avg_pool2d` on a field, with the halo that its windows need.

    Args:
        field: (batch, lat, lon, channel), sharded along dim 1 or 2.
        kernel, stride, padding, ceil_mode, count_include_pad: as for
            `ops.pool.avg_pool2d`.
        out: layout of the output rows; None for equal blocks.

    Returns:
        Field on layout `out`.

    Raises:
        ValueError: as for `ops.pool.avg_pool2d`, or the number of rows of `out` is
            wrong.
    """
    windows = pool_windows(kernel, stride, padding, ceil_mode=ceil_mode)
    local, target = _rows_of_windows(field, windows, out)
    sums = local.data.astype(jnp.promote_types(local.data.dtype, jnp.float32))
    for dim, window in zip((HEIGHT, WIDTH), windows, strict=True):
        size = dim_size(field, dim)
        points = window.points(size, include_padding=count_include_pad)
        num, low = _span(local, target, window, dim)
        sums = window_sum(sums, window, num, dim, low=low)
        mine = target.local(points, fill=1) if dim == target.dim else points
        sums = sums / along(jnp.asarray(mine, sums.dtype), dim, 4)
    return to_layout(Field(sums.astype(field.data.dtype), target), out)


def max_pool2d_field(
    field: Field,
    kernel: IntPair,
    *,
    stride: IntPair | None = None,
    padding: Padding = NO_PADDING,
    dilation: IntPair = (1, 1),
    ceil_mode: bool = False,
    out: Layout | None = None,
) -> Field:
    """`ops.pool.max_pool2d` on a field, with the halo that its windows need.

    Args:
        field: (batch, lat, lon, channel), sharded along dim 1 or 2.
        kernel, stride, padding, dilation, ceil_mode: as for `ops.pool.max_pool2d`.
        out: layout of the output rows; None for equal blocks.

    Returns:
        Field on layout `out`.

    Raises:
        ValueError: as for `ops.pool.max_pool2d`, or the number of rows of `out` is
            wrong.
    """
    windows = pool_windows(kernel, stride, padding, dilation, ceil_mode=ceil_mode)
    local, target = _rows_of_windows(field, windows, out)
    data = local.data
    if local.layout.has_padding:
        # Padding must never be a maximum.
        data = jnp.where(local.mask(), data, jnp.asarray(-jnp.inf, data.dtype))
    for dim in (WIDTH, HEIGHT):
        num, low = _span(local, target, windows[dim - 1], dim)
        data = window_max(data, windows[dim - 1], num, dim, low=low)
    pooled = Field(data, target)
    if target.has_padding:
        pooled = pooled.like(jnp.where(pooled.mask(), data, jnp.zeros((), data.dtype)))
    return to_layout(pooled, out)


def _rows_of_windows(
    field: Field, windows: tuple[PoolingWindows, PoolingWindows], out: Layout | None
) -> tuple[Field, Layout]:
    """Returns the field with the rows of all local windows, and the output layout."""
    layout = field.layout
    window = windows[spatial_dim(layout, 2)]
    target = consecutive_layout(layout, window.count(layout.size), out)
    if layout.num_shards == 1:
        return in_row_order(field), target
    geometry = KernelGeometry(
        window.size, window.stride, window.padding, window.dilation
    )
    return reshard(field, conv_rows(layout, target, geometry), scope=HALO), target


def _span(
    local: Field, target: Layout, window: PoolingWindows, dim: int
) -> tuple[int, int]:
    """Returns numbers of local windows along `dim` and of points to pad in front."""
    if dim != target.dim or target.num_shards == 1:
        return window.count(local.data.shape[dim]), window.padding[0]
    return target.length, 0


def adaptive_avg_pool2d_field(
    field: Field, size: tuple[int | None, int | None], *, out: Layout | None = None
) -> Field:
    """`ops.pool.adaptive_avg_pool2d` on a field.

    If windows have more rows than a shard, every shard sums its own rows and a
    `psum_scatter` adds the partial sums. Otherwise each shard receives the rows of its
    windows.

    Args:
        field: (batch, lat, lon, channel), sharded along dim 1 or 2.
        size: output height and width; None keeps that of the field.
        out: layout of the output rows; None for equal blocks.

    Returns:
        Field on layout `out`.

    Raises:
        ValueError: an output size below 1, or the number of rows of `out` is wrong.
    """
    at = spatial_dim(field.layout, 2)
    other = WIDTH if field.layout.dim == HEIGHT else HEIGHT
    field = field.like(adaptive_means(field.data, size[other - 1], other))
    rows = size[at]
    if rows is None or rows == field.layout.size:
        return to_layout(field, out)
    windows = adaptive_windows(field.layout.size, rows)
    target = consecutive_layout(field.layout, rows, out)
    if field.layout.num_shards == 1:
        data = adaptive_means(in_row_order(field).data, rows, target.dim)
        return to_layout(Field(data, target), out)
    wide = max(map(len, windows)) > field.layout.length
    means = _scattered_means if wide else _local_means
    return to_layout(means(field, windows, target), out)


def _local_means(field: Field, windows: list[range], target: Layout) -> Field:
    """Returns means of windows after moving their rows to the shard of the output."""
    longest = max(map(len, windows))
    rows_per_shard = [
        padded_windows([windows[g] if g >= 0 else () for g in rows], longest).tolist()
        for rows in target.rows
    ]
    need = field.layout.with_rows(rows_per_shard, field.layout.size)
    local = reshard(field, need, scope=HALO)
    points = target.local(np.asarray([len(w) for w in windows]), fill=1)
    return Field(mean_of_windows(local.data, points, target.dim), target)


def _scattered_means(field: Field, windows: list[range], target: Layout) -> Field:
    """Returns means of windows that span several shards, by one `psum_scatter`."""
    layout = field.layout
    if not layout.is_block:
        field, layout = reshard(field, layout.to_blocks()), layout.to_blocks()
    wide = field.data.astype(jnp.promote_types(field.data.dtype, jnp.float32))
    if layout.has_padding:
        wide = jnp.where(field.mask(), wide, jnp.zeros((), wide.dtype))
    shares = jnp.asarray(_shares(layout, windows, target), wide.dtype)
    mine = shares[axis_index(layout.axis)]
    sums = jnp.tensordot(mine, wide, (1, layout.dim), precision="highest")
    sums = jnp.moveaxis(sums, 0, layout.dim)
    assert layout.axis, "rows are split over an axis"
    sums = lax.psum_scatter(sums, layout.axis, scatter_dimension=layout.dim, tiled=True)
    return Field(sums.astype(field.data.dtype), target)


def _shares(layout: Layout, windows: list[range], target: Layout) -> np.ndarray:
    """Returns weights of rows in means, (shard, global output row, local row)."""
    target_rows = [row for rows in target.rows for row in rows]
    shares = np.zeros((layout.num_shards, len(target_rows), layout.length))
    rows_per_shard = np.asarray(layout.rows)
    for position, row in enumerate(target_rows):
        if row >= 0:
            window = windows[row]
            inside = (rows_per_shard >= window.start) & (rows_per_shard < window.stop)
            shares[:, position] = inside / len(window)
    return shares


def global_mean_pool(field: Field) -> Float[Array, "batch channel"]:
    """Mean over all points of the globe, as torch.nn.AdaptiveAvgPool2d(1).

    Padding rows do not count; the sum is computed in float32 or wider.

    Args:
        field: (batch, lat, lon, channel), or with further spatial dims.

    Returns:
        (batch, channel), the same on all shards.
    """
    total = _sum(field, tuple(range(1, field.data.ndim - 1)))
    return (total / num_points(field)).astype(field.data.dtype)


def mean_over_lat(field: Field) -> Float[Array, "batch *spatial lon channel"]:
    """Mean over latitude, as torch.nn.AdaptiveAvgPool2d((1, None)).

    Returns:
        (batch, 1, lon, channel), which broadcasts against `field.data`: the columns of
        this shard if longitude is sharded, otherwise the same on all shards.
    """
    return _mean_along(field, lat_lon_dims(field)[0])


def mean_over_lon(field: Field) -> Float[Array, "batch *spatial lat 1 channel"]:
    """Mean over longitude, as torch.nn.AdaptiveAvgPool2d((None, 1)).

    Returns:
        (batch, lat, 1, channel), which broadcasts against `field.data`: the rows of
        this shard if latitude is sharded, otherwise the same on all shards.
    """
    return _mean_along(field, lat_lon_dims(field)[1])


def global_max_pool(field: Field) -> Float[Array, "batch channel"]:
    """Maximum over all points of the globe, as torch.nn.AdaptiveMaxPool2d(1).

    On any number of shards, the gradient of ties goes to the first maximum in the
    row-major order of global positions, as in torch.

    Args:
        field: (batch, lat, lon, channel), or with further spatial dims.

    Returns:
        (batch, channel), the same on all shards.
    """
    x, axis = field.data, field.layout.axis
    dims = tuple(range(1, x.ndim - 1))
    seen = lax.stop_gradient(x)
    seen = jnp.where(jnp.isnan(seen), jnp.inf, seen)
    seen = jnp.where(field.mask(), seen, -jnp.inf)
    largest = seen.max(dims, keepdims=True)
    if axis:
        largest = lax.pmax(pvary(largest, (axis,)), axis)
    position = _positions(field)
    last = np.iinfo(np.int32).max
    origin = jnp.where((seen == largest) & field.mask(), position, last)
    first = origin.min(dims, keepdims=True)
    if axis:
        first = lax.pmin(pvary(first, (axis,)), axis)
    chosen = jnp.where(origin == first, x, jnp.zeros((), x.dtype)).sum(dims)
    return sum_parts(chosen, (axis,) if axis else ())


def _positions(field: Field) -> Array:
    """Returns the global row-major index of every local point, (1, lat, lon, 1)."""
    dims = range(1, field.data.ndim - 1)
    sizes = [dim_size(field, dim) for dim in dims]
    assert math.prod(sizes) < 2**31, f"{sizes} points are too many to be numbered"
    position = jnp.zeros((1,) * field.data.ndim, jnp.int32)
    for dim, size in zip(dims, sizes, strict=True):
        shape = [1] * field.data.ndim
        shape[dim] = -1
        split = dim == field.layout.dim
        rows = field.layout.global_rows() if split else jnp.arange(size)
        position = position * size + rows.astype(jnp.int32).reshape(shape)
    return position


def _mean_along(field: Field, dim: int) -> Array:
    total = _sum(field, (dim,), keepdims=True)
    return (total / dim_size(field, dim)).astype(field.data.dtype)


def _sum(field: Field, dims: tuple[int, ...], *, keepdims: bool = False) -> Array:
    """Sums over dims, and over all shards if the sharded dim is one of them."""
    wide = field.data.astype(jnp.promote_types(field.data.dtype, jnp.float32))
    layout = field.layout
    axes = (layout.axis,) if layout.axis and layout.dim in dims else ()
    return field_sum(field.like(wide), dims, axes, keepdims=keepdims)


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
