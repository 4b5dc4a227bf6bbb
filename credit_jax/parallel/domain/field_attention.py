"""Channel and spatial attention on sharded fields: gates from means of the field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from credit_jax.ops import RunningStatistics, neighbor_gate, squeeze_gate
from credit_jax.ops.dense import add_bias
from credit_jax.parallel.domain.conv import conv2d_field
from credit_jax.parallel.domain.norm import batch_norm_field
from credit_jax.parallel.domain.pool import (
    global_mean_pool,
    mean_over_lat,
    mean_over_lon,
)
from credit_jax.parallel.placement import gather_rows
from credit_jax.parallel.rows.layout import Field, block_layout


def squeeze_excite(
    field: Field,
    squeeze: Float[Array, "channel hidden"],
    expand: Float[Array, "hidden channel"],
    *,
    squeeze_bias: Float[Array, " hidden"] | None = None,
    expand_bias: Float[Array, " channel"] | None = None,
) -> Field:
    """Multiplies every channel by a gate that depends on the global means of all.

    This is torchvision's SqueezeExcitation; without biases it is the channel part of
    CREDIT's SCSEAttention.

    Args:
        field: (batch, lat, lon, channel), or with further spatial dims.
        squeeze, expand, squeeze_bias, expand_bias: see `squeeze_gate`.
    """
    gate = squeeze_gate(
        global_mean_pool(field),
        squeeze,
        expand,
        squeeze_bias=squeeze_bias,
        expand_bias=expand_bias,
    )
    return _times(field, gate)


def efficient_channel_attention(field: Field, kernel: Float[Array, " taps"]) -> Field:
    """Multiplies every channel by a gate of its neighbors' means: CREDIT's ECABlock.

    Args:
        field: (batch, lat, lon, channel), or with further spatial dims.
        kernel: (taps,), convolved with the global means along channels;
            `ops.activations.neighbor_taps` gives CREDIT's size.
    """
    return _times(field, neighbor_gate(global_mean_pool(field), kernel))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class CoordinateWeights:
    """Weights of `coordinate_attention`, a pytree.

    Attributes:
        squeeze, squeeze_bias: (channel, hidden), (hidden,).
        norm_scale, norm_bias: (hidden,), of the batch normalization.
        lat, lat_bias: (hidden, channel), (channel,), of the gate of each row.
        lon, lon_bias: (hidden, channel), (channel,), of the gate of each column.
    """

    # Any: the same tree structure also contains specs or shapes.
    squeeze: Any
    squeeze_bias: Any
    norm_scale: Any
    norm_bias: Any
    lat: Any
    lat_bias: Any
    lon: Any
    lon_bias: Any


def coordinate_attention(
    field: Field,
    weights: CoordinateWeights,
    running: RunningStatistics | None = None,
    *,
    training: bool,
    momentum: float | None = 0.1,
    epsilon: float = 1e-5,
    axes: Sequence[str] = (),
) -> tuple[Field, RunningStatistics | None]:
    """Multiplies by gates of rows and of columns: CREDIT's CoordinateAttention.

    The batch normalization takes statistics over the means of all rows and all columns,
    which are equal on any number of shards. Means are all-gathered after they are
    squeezed.

    Args:
        field: (batch, lat, lon, channel).
        weights: see `CoordinateWeights`.
        running, training, momentum, epsilon, axes: as for `batch_norm_field`.

    Returns:
        The field times both gates; and the running statistics, updated in training.
    """
    lat = _squeezed(mean_over_lon(field), field, weights, dim=1)[:, :, 0]
    lon = _squeezed(mean_over_lat(field), field, weights, dim=2)[:, 0]
    joint = jnp.concatenate([lat, lon], 1)
    # Every shard has the means of all rows and columns now: a field on one device.
    normal, running = batch_norm_field(
        Field(joint, block_layout(joint.shape[1])),
        weights.norm_scale,
        weights.norm_bias,
        running,
        training=training,
        momentum=momentum,
        epsilon=epsilon,
        axes=axes,
    )
    lat, lon = jnp.split(jax.nn.silu(normal.data), [lat.shape[1]], 1)
    by_row = _linear(_local(lat[:, :, None], field, 1), weights.lat, weights.lat_bias)
    by_column = _linear(_local(lon[:, None], field, 2), weights.lon, weights.lon_bias)
    gate = jax.nn.sigmoid(by_row) * jax.nn.sigmoid(by_column)
    return field.like(field.data * gate), running


def _squeezed(
    mean: Array, field: Field, weights: CoordinateWeights, *, dim: int
) -> Array:
    """Returns the means in hidden channels, with all rows on every shard."""
    hidden = _linear(mean, weights.squeeze, weights.squeeze_bias)
    return gather_rows(field.like(hidden)) if dim == field.layout.dim else hidden


def _local(full: Array, field: Field, dim: int) -> Array:
    """Returns the rows of this shard from an array with all rows."""
    if dim != field.layout.dim:
        return full
    return jnp.moveaxis(field.layout.local(jnp.moveaxis(full, dim, 0)), 0, dim)


def _linear(x: Array, kernel: Array, bias: Array) -> Array:
    return add_bias(jnp.matmul(x, kernel), bias)


def _times(field: Field, gate: Float[Array, "batch channel"]) -> Field:
    batch, channels = gate.shape
    shape = (batch, *(1,) * (field.data.ndim - 2), channels)
    return field.like(field.data * gate.reshape(shape))


def spatial_attention(
    field: Field, kernel: Float[Array, "kernel_h kernel_w 2 1"]
) -> Field:
    """Multiplies every point by a gate: CREDIT's LightSpatialAttention.

    The gate is the sigmoid of a zero-padded convolution over mean and maximum of the
    channels. The gradient of tied maxima goes to the first, as in torch.

    Args:
        field: (batch, lat, lon, channel).
        kernel: (kernel_h, kernel_w, 2, 1), for mean and maximum, with odd sizes.

    Raises:
        ValueError: a kernel of even size.
    """
    if not all(size % 2 for size in kernel.shape[:2]):
        raise ValueError(
            f"the kernel of spatial attention is {kernel.shape[0]} x "
            f"{kernel.shape[1]}; expected odd sizes"
        )
    x = field.data
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    mean = wide.mean(-1, keepdims=True).astype(x.dtype)
    largest = jnp.take_along_axis(x, jnp.argmax(x, -1, keepdims=True), -1)
    seen = field.like(jnp.concatenate([mean, largest], -1))
    half_h, half_w = kernel.shape[0] // 2, kernel.shape[1] // 2
    gate = conv2d_field(
        seen,
        kernel,
        padding=((half_h, half_h), (half_w, half_w)),
        out=field.layout,
    )
    return field.like(x * jax.nn.sigmoid(gate.data))


def scse(
    field: Field,
    squeeze: Float[Array, "channel hidden"],
    expand: Float[Array, "hidden channel"],
    points: Float[Array, " channel"],
    *,
    squeeze_bias: Float[Array, " hidden"] | None = None,
    expand_bias: Float[Array, " channel"] | None = None,
    points_bias: Float[Array, ""] | None = None,
) -> Field:
    """Sums the field times a gate of channels and the field times a gate of points.

    out = x * channel gate + x * sigmoid(x @ points + points_bias)

    Without biases this is CREDIT's SCSEAttention, with biases that of
    segmentation_models_pytorch.

    Args:
        field: (batch, lat, lon, channel), or with further spatial dims.
        squeeze, expand, squeeze_bias, expand_bias: as for `squeeze_excite`.
        points: (channel,), kernel of the gate of points; for CREDIT's depthwise variant
            the product of both kernels.
        points_bias: (), bias of the gate of points, or None.
    """
    logit = jnp.matmul(field.data, points)[..., None]
    gate = jax.nn.sigmoid(logit if points_bias is None else logit + points_bias)
    excited = squeeze_excite(
        field, squeeze, expand, squeeze_bias=squeeze_bias, expand_bias=expand_bias
    )
    return field.like(excited.data + field.data * gate)
