"""Normalization of sharded fields, with statistics over all rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.affine import scale_and_shift
from credit_jax.ops.batch_stats import RunningStatistics, batch_norm_by
from credit_jax.parallel.reductions import field_sum
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
    x, axis = field.data, field.layout.axis
    per_group = x.shape[-1] // num_groups
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    wide = wide.reshape(*x.shape[:-1], num_groups, per_group)
    count = num_points(field) * per_group
    dims = (*range(1, x.ndim - 1), x.ndim)

    def mean(values: Array) -> Array:
        axes = (axis,) if axis else ()
        return field_sum(field.like(values), dims, axes, keepdims=True) / count

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
    """`ops.batch_stats.batch_norm` over the batch and all rows of all shards.

    Args:
        field: (batch, lat, lon, channel), or with further spatial dims.
        scale, bias, running, training, momentum, epsilon: as for
            `ops.batch_stats.batch_norm`.
        axes: further mesh axes to take statistics over. With the data-parallel ones
            (`MeshAxes.data`) this is torch.nn.SyncBatchNorm; without them every dp rank
            has running statistics of its own, which vary over dp by type.

    Returns:
        The normalized field, and `running` after this batch: the same on all shards.
    """
    x, axis = field.data, field.layout.axis
    over = tuple(dict.fromkeys(([axis] if axis else []) + list(axes)))
    others = math.prod(lax.axis_size(name) for name in over if name != axis)
    count = x.shape[0] * num_points(field) * others
    dims = tuple(range(x.ndim - 1))

    def mean_of(values: Array) -> Array:
        return field_sum(field.like(values), dims, over) / count

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
    """Number of points of the globe: the product of all spatial dims, no padding."""
    spatial = math.prod(field.data.shape[1:-1])
    return spatial // field.layout.length * field.layout.size
