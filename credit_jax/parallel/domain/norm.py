"""Normalization with statistics over the rows of all shards."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.affine import scale_and_shift
from credit_jax.ops.batch_stats import RunningStatistics, batch_norm_by
from credit_jax.parallel.collectives import psum, pvary
from credit_jax.parallel.rows.layout import Field


def group_norm(
    field: Field,
    scale: Float[Array, " channel"],
    bias: Float[Array, " channel"],
    *,
    num_groups: int,
    epsilon: float = 1e-5,
) -> Field:
    """torch.nn.GroupNorm: statistics over all points and the channels of a group.

    Padding rows do not count. Mean and centered variance are each one local sum and
    one `psum`, in float32 or wider.

    Args:
        field: (batch, lat, lon, channel), or with further spatial dims.
        scale, bias: (channel,).
        num_groups: divides the number of channels.
        epsilon: inside the root.
    """
    x, layout = field.data, field.layout
    per_group = x.shape[-1] // num_groups
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    wide = wide.reshape(*x.shape[:-1], num_groups, per_group)
    points = num_points(field)
    mask = field.mask()[..., None] if layout.has_filler else None
    dims = (*range(1, x.ndim - 1), x.ndim)

    def mean(values: Array) -> Array:
        if mask is not None:
            values = jnp.where(mask, values, jnp.zeros((), values.dtype))
        local = values.sum(dims, keepdims=True)
        if layout.axis:
            local = psum(pvary(local, (layout.axis,)), layout.axis)
        return local / (points * per_group)

    centered = wide - mean(wide)
    variance = mean(centered * centered)
    normal = centered * lax.rsqrt(variance + epsilon)
    normal = scale_and_shift(normal.reshape(x.shape), scale, bias)
    return field.like(normal.astype(x.dtype))


def batch_norm_field(
    field: Field,
    scale: Float[Array, " channel"],
    bias: Float[Array, " channel"],
    running: RunningStatistics | None = None,
    *,
    training: bool,
    momentum: float | None = 0.1,
    epsilon: float = 1e-5,
    axes: Sequence[str] = (),
) -> tuple[Field, RunningStatistics | None]:
    """`ops.norm.batch_norm` over the batch and the real rows of all shards.

    Args:
        field: (batch, lat, lon, channel), or with further spatial dims.
        scale, bias, running, training, momentum, epsilon: as for `ops.norm.batch_norm`.
        axes: further mesh axes that the statistics go over. With the data-parallel ones
            (`MeshAxes.data`) this is torch.nn.SyncBatchNorm; without, every dp rank has
            running statistics of its own, and their type says so.

    Returns:
        The normalized field, and `running` after this batch: the same on all shards.
    """
    x, layout = field.data, field.layout
    summed = dict.fromkeys(([layout.axis] if layout.axis else []) + list(axes))
    over = tuple(summed)
    others = math.prod(lax.axis_size(axis) for axis in over if axis != layout.axis)
    count = x.shape[0] * num_points(field) * others
    dims = tuple(range(x.ndim - 1))

    def mean_of(values: Array) -> Array:
        if layout.has_filler:
            values = jnp.where(field.mask(), values, jnp.zeros((), values.dtype))
        return psum(pvary(values.sum(dims), over), over) / count

    data, running = batch_norm_by(
        mean_of,
        count,
        x,
        scale,
        bias,
        running,
        training=training,
        momentum=momentum,
        epsilon=epsilon,
    )
    return field.like(data), running


def num_points(field: Field) -> int:
    """Points of the whole globe, padding left out: the product of the spatial dims."""
    spatial = math.prod(field.data.shape[1:-1])
    return spatial // field.layout.length * field.layout.size
