"""Spatial attention on sharded fields: a gate of each point, from its channels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from credit_jax.parallel.domain.channel_attention import squeeze_excite
from credit_jax.parallel.domain.conv import conv2d_field
from credit_jax.parallel.rows.layout import Field


def spatial_attention(
    field: Field, kernel: Float[Array, "kernel_h kernel_w 2 1"]
) -> Field:
    """CREDIT's LightSpatialAttention: every point times a gate of its neighborhood.

    The gate is the sigmoid of a convolution over mean and maximum of the channels, with
    zeros around the grid. The gradient of a maximum goes to the first of equal ones, as
    torch's does.

    Args:
        field: (batch, lat, lon, channel).
        kernel: odd sizes; (kernel_h, kernel_w, mean and maximum, 1).

    Raises:
        ValueError: an even kernel, which would not give one gate a point.
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
    """Gates of channels and of points, each times the field.

    out = x * channel gate + x * sigmoid(x @ points + points_bias)

    Without biases CREDIT's SCSEAttention, with them that of
    segmentation_models_pytorch.

    Args:
        field: (batch, lat, lon, channel), or with further spatial dims.
        squeeze, expand, squeeze_bias, expand_bias: as for `squeeze_excite`.
        points: the channels' weights in the gate of a point; with CREDIT's depthwise
            variant the product of both kernels.
        points_bias: of that gate.
    """
    logit = jnp.matmul(field.data, points)[..., None]
    gate = jax.nn.sigmoid(logit if points_bias is None else logit + points_bias)
    excited = squeeze_excite(
        field, squeeze, expand, squeeze_bias=squeeze_bias, expand_bias=expand_bias
    )
    return field.like(excited.data + field.data * gate)
