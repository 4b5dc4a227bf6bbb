"""Spatial attention on sharded fields: gates of points, computed from channels."""

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
