"""Normalization of sharded fields, with statistics over the rows of all shards."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops import RunningStatistics
from credit_jax.ops.dense import scale_and_shift
from credit_jax.parallel.collectives import keep_moved
from credit_jax.parallel.reductions import field_sum
from credit_jax.parallel.rows.layout import Field


def group_norm(
    field: Field,
    scale: Float[Array, " channel"] | None = None,
    bias: Float[Array, " channel"] | None = None,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
) -> Field:
    """Group normalization over all points and the channels of a group, as in torch."""
    x = field.data
    per_group = x.shape[-1] // num_groups
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    wide = wide.reshape(*x.shape[:-1], num_groups, per_group)
    # Each shard computes the mean and the centered sum of squares of its points without
    # padding, in float32 or wider; the formula of Chan et al. (1979) combines those of
    # all shards, as accurately as two passes over all points.
    mean, variance = _moments(field.like(wide), (*range(1, x.ndim - 1), x.ndim))
    normal = (wide - mean) * lax.rsqrt(variance + epsilon)
    normal = normal.reshape(x.shape)
    if scale is not None and bias is not None:
        normal = scale_and_shift(normal, scale, bias)
    return field.like(normal.astype(x.dtype))


def _moments(field: Field, dims: Sequence[int]) -> tuple[Array, Array]:
    """Returns mean and variance over dims, the sharded one included, of all shards."""
    x, layout = field.data, field.layout
    per_row = math.prod(x.shape[dim] for dim in dims) // layout.length
    counts = per_row * (np.asarray(layout.rows) >= 0).sum(1)
    # A shard that has only padding divides by 1, and has no share below.
    num_points = layout.of_shard(np.maximum(counts, 1)).astype(x.dtype)
    mean = field_sum(field, dims, keepdims=True) / num_points
    squares = field_sum(field.like((x - mean) ** 2), dims, keepdims=True)
    if layout.num_shards == 1:
        return mean, squares / num_points
    parts = keep_moved(lax.all_gather(jnp.stack([mean, squares]), layout.axis))
    means, squares = parts[:, 0], parts[:, 1]
    share = jnp.asarray(counts, x.dtype).reshape(-1, *(1,) * x.ndim)
    total = counts.sum()
    mean = (share * means).sum(0) / total
    squares = squares.sum(0) + (share * (means - mean[None]) ** 2).sum(0)
    return mean, squares / total


def batch_norm_field(
    field: Field,
    scale: Float[Array, " channel"],
    bias: Float[Array, " channel"],
    running: RunningStatistics,
    *,
    training: bool,
    momentum: float | None = 0.1,
    epsilon: float = 1e-5,
    axes: Sequence[str] = (),
) -> tuple[Field, RunningStatistics]:
    """Normalizes by statistics of all samples and shards, and returns those after."""
    # As torch.nn.BatchNorm2d; a momentum of None is the mean over all batches.
    x, axis = field.data, field.layout.axis
    # With the data-parallel axes (`MeshAxes.data`) this is torch.nn.SyncBatchNorm;
    # without them every data-parallel rank has different running statistics, of varying
    # type.
    over = tuple(dict.fromkeys(([axis] if axis else []) + list(axes)))
    others = math.prod(lax.axis_size(name) for name in over if name != axis)
    count = x.shape[0] * num_points(field) * others
    dims, lead = tuple(range(x.ndim - 1)), (1,) * (x.ndim - 1)

    def mean_of(values: Array) -> Array:
        return field_sum(field.like(values), dims, over) / count

    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean, variance = running.mean, running.variance
    if training:
        if count < 2:
            raise ValueError(
                f"batch normalization got {count} value a channel in training; "
                "expected at least 2: use a larger batch or grid"
            )
        mean = mean_of(wide)
    centered = wide - mean.reshape(*lead, -1)
    if training:
        variance = mean_of(centered * centered)
        running = running.updated(mean, variance, num_values=count, momentum=momentum)
    normal = centered * lax.rsqrt(variance + epsilon).reshape(*lead, -1)
    return field.like(scale_and_shift(normal, scale, bias).astype(x.dtype)), running


def num_points(field: Field) -> int:
    """Returns the global number of points, without padding rows."""
    spatial = math.prod(field.data.shape[1:-1])
    layout = field.layout
    return spatial // layout.length * layout.size * layout.strips
