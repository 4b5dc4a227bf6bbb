"""Means and maxima of sharded fields over the globe or over one dim."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.vma import pvary
from credit_jax.parallel.collectives import sum_parts
from credit_jax.parallel.domain.norm import num_points
from credit_jax.parallel.domain.select import dim_size, lat_lon_dims
from credit_jax.parallel.reductions import field_sum
from credit_jax.parallel.rows.layout import Field


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
    where = jnp.where((seen == largest) & field.mask(), position, last)
    first = where.min(dims, keepdims=True)
    if axis:
        first = lax.pmin(pvary(first, (axis,)), axis)
    chosen = jnp.where(where == first, x, jnp.zeros((), x.dtype)).sum(dims)
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
