"""Pooling and interpolation of sharded fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.ops import area_taps, linear_taps, nearest_taps, pool
from credit_jax.ops.conv import NO_PADDING, Padding
from credit_jax.ops.resize import Taps
from credit_jax.ops.space_to_depth import IntPair
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.domain import output_layout
from credit_jax.parallel.domain.conv import KernelGeometry, conv_rows
from credit_jax.parallel.domain.norm import num_points
from credit_jax.parallel.domain.rearrange import dim_size
from credit_jax.parallel.reductions import field_sum
from credit_jax.parallel.rows.exchange import HALO, in_rows, reshard
from credit_jax.parallel.rows.layout import Field, Layout
from credit_jax.parallel.rows.take import take_rows


def avg_pool2d_field(
    field: Field,
    kernel: IntPair,
    *,
    stride: IntPair | None = None,  # None for the kernel
    padding: Padding = NO_PADDING,  # torch's `padding=p` is ((p, p), (p, p))
    out: Layout | None = None,
) -> Field:
    """Mean of each window, as torch.nn.functional.avg_pool2d."""
    windows = pool.pool_windows(kernel, stride, padding)
    local, target = _rows_of_windows(field, windows, out)
    sums = local.data.astype(jnp.promote_types(local.data.dtype, jnp.float32))
    for dim, window in zip((pool.HEIGHT, pool.WIDTH), windows, strict=True):
        size = dim_size(field, dim)
        points = window.points(size)
        num, low = _span(local, target, window, dim)
        sums = pool.window_sum(sums, window, num, dim, low=low)
        mine = target.local(points, fill=1) if dim == target.dim else points
        sums = sums / pool.along(jnp.asarray(mine, sums.dtype), dim, 4)
    return output_layout.to_layout(Field(sums.astype(field.data.dtype), target), out)


def max_pool2d_field(
    field: Field,
    kernel: IntPair,
    *,
    stride: IntPair | None = None,
    padding: Padding = NO_PADDING,
    out: Layout | None = None,
) -> Field:
    """Maximum of each window, as torch.nn.functional.max_pool2d; NaN propagates."""
    windows = pool.pool_windows(kernel, stride, padding)
    local, target = _rows_of_windows(field, windows, out)
    data = local.data
    if local.layout.has_padding:
        # Padding must never be a maximum.
        data = jnp.where(local.mask(), data, jnp.asarray(-jnp.inf, data.dtype))
    # Columns first, so that ties go to the first maximum in row-major order.
    for dim in (pool.WIDTH, pool.HEIGHT):
        num, low = _span(local, target, windows[dim - 1], dim)
        data = pool.window_max(data, windows[dim - 1], num, dim, low=low)
    pooled = Field(data, target)
    if target.has_padding:
        pooled = pooled.like(jnp.where(pooled.mask(), data, jnp.zeros((), data.dtype)))
    return output_layout.to_layout(pooled, out)


def _rows_of_windows(
    field: Field,
    windows: tuple[pool.PoolingWindows, pool.PoolingWindows],
    out: Layout | None,
) -> tuple[Field, Layout]:
    """Returns the field with the rows of all local windows, and the output layout."""
    layout = field.layout
    window = windows[output_layout.spatial_dim(layout, 2)]
    target = output_layout.consecutive_layout(layout, window.count(layout.size), out)
    if layout.num_shards == 1:
        return output_layout.in_row_order(field), target
    geometry = KernelGeometry(window.size, window.stride, window.padding, 1)
    return reshard(field, conv_rows(layout, target, geometry), scope=HALO), target


def _span(
    local: Field, target: Layout, window: pool.PoolingWindows, dim: int
) -> tuple[int, int]:
    """Returns numbers of local windows along `dim` and of points to pad in front."""
    if dim != target.dim or target.num_shards == 1:
        return window.count(local.data.shape[dim]), window.padding[0]
    return target.length, 0


def global_mean_pool(field: Field) -> Float[Array, "batch channel"]:
    """Mean over all points of the globe, as torch.nn.AdaptiveAvgPool2d(1)."""
    total = _sum(field, tuple(range(1, field.data.ndim - 1)))
    return (total / num_points(field)).astype(field.data.dtype)


def mean_over(field: Field, dim: int) -> Float[Array, "batch *spatial channel"]:
    """Mean over a spatial dim, as AdaptiveAvgPool2d((1, None)) over latitude."""
    # The dim has size 1, to broadcast against `field.data`.
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
    """Interpolates linearly to `size` (lat, lon) points, as torch's mode bilinear."""
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
    """Resizes as torch's nearest: output i is input floor(i * size_in / size_out)."""

    def taps(size_in: int, size_out: int) -> Taps:
        # `half_pixel` puts i + 0.5 in the place of i (torch's mode nearest-exact).
        low = nearest_taps(size_in, size_out, half_pixel=half_pixel)
        return Taps(low, low, np.zeros(size_out))

    return _resize(field, size, taps, out)


def resize_area(
    field: Field, size: Sequence[int], *, out: Layout | None = None
) -> Field:
    """Resizes to at least as many points as torch's mode area; see `area_taps`."""
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
                weight = jnp.asarray(taps.weight).reshape(
                    (1,) * dim + (-1,) + (1,) * (data.ndim - dim - 1)
                )
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
    mine = jnp.asarray(weight)[axis_index(axis)].reshape(
        (1,) * dim + (-1,) + (1,) * (local.ndim - dim - 1)
    )
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


def _blend(low: Array, high: Array, weight: Array) -> Array:
    weight = weight.astype(low.dtype)
    return low * (1 - weight) + high * weight
