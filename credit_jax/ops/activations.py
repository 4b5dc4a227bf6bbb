"""Gates of channel attention, factors in (0, 1) of channel means, and GELU."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import erf
from jaxtyping import Array, Float

Pooled = Float[Array, "batch channel"]


def squeeze_gate(
    pooled: Pooled,
    squeeze: Float[Array, "channel hidden"],
    expand: Float[Array, "hidden channel"],
    *,
    squeeze_bias: Float[Array, " hidden"] | None = None,
    expand_bias: Float[Array, " channel"] | None = None,
) -> Pooled:
    """Returns sigmoid(relu(pooled @ squeeze + squeeze_bias) @ expand + expand_bias).

    With biases this is the gate of torchvision's SqueezeExcitation, without biases that
    of CREDIT's SCSEAttention.

    Args:
        pooled: (batch, channel), mean of each channel over the whole field.
        squeeze: (channel, hidden), kernel of the first layer.
        expand: (hidden, channel), kernel of the second layer.
        squeeze_bias, expand_bias: None for no bias.
    """
    x = jnp.matmul(pooled, squeeze)
    x = jax.nn.relu(x if squeeze_bias is None else x + squeeze_bias[None])
    x = jnp.matmul(x, expand)
    return jax.nn.sigmoid(x if expand_bias is None else x + expand_bias[None])


def neighbor_gate(pooled: Pooled, kernel: Float[Array, " taps"]) -> Pooled:
    """Sigmoid of a convolution over neighboring channels: CREDIT's ECABlock.

    Args:
        pooled: (batch, channel), mean of each channel over the whole field.
        kernel: (taps,), an odd number of taps (`neighbor_taps`). Channels beyond the
            first and the last count as zeros.
    """
    half = kernel.shape[0] // 2
    mixed = lax.conv_general_dilated(
        pooled[:, :, None],
        kernel[:, None, None],
        (1,),
        [(half, half)],
        dimension_numbers=("NWC", "WIO", "NWC"),
    )
    return jax.nn.sigmoid(mixed[:, :, 0])


def neighbor_taps(channels: int) -> int:
    """Returns ECABlock's kernel size: (log2(channels) + 1) / 2, cut and made odd.

    >>> [neighbor_taps(channels) for channels in (8, 64, 128, 512)]
    [3, 3, 5, 5]
    """
    taps = int((math.log2(channels) + 1) / 2)
    return taps if taps % 2 else taps + 1


@jax.custom_jvp
def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns `x * Phi(x)` with the normal CDF Phi, as torch.nn.functional.gelu.

    Computed in float32 or wider, returned in the dtype of `x`. A custom JVP saves one
    array for the backward pass, where differentiating the formula would save four;
    these are the widest activations of a transformer.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (wide * _distribution(wide)).astype(x.dtype)


@gelu.defjvp
def _gelu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    density = jnp.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
    slope = _distribution(wide) + wide * density
    return gelu(x), slope.astype(x.dtype) * tangent


def _distribution(x: Array) -> Array:
    """Cumulative distribution function of the standard normal distribution."""
    return 0.5 * (1 + erf(x * math.sqrt(0.5)))
