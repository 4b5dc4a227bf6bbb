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
    """sigmoid(relu(pooled @ squeeze + bias) @ expand + bias) of the channel means."""
    # With biases the gate of torchvision's SqueezeExcitation, without them that of
    # CREDIT's SCSEAttention.
    x = jnp.matmul(pooled, squeeze)
    x = jax.nn.relu(x if squeeze_bias is None else x + squeeze_bias[None])
    x = jnp.matmul(x, expand)
    return jax.nn.sigmoid(x if expand_bias is None else x + expand_bias[None])


def neighbor_gate(pooled: Pooled, kernel: Float[Array, " taps"]) -> Pooled:
    """Sigmoid of a convolution over neighboring channels: CREDIT's ECABlock."""
    # An odd number of taps; channels beyond the first and the last count as zeros.
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
    """Returns ECABlock's kernel size: (log2(channels) + 1) / 2, cut and made odd."""
    taps = int((math.log2(channels) + 1) / 2)
    return taps if taps % 2 else taps + 1


@jax.custom_jvp
def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns `x * Phi(x)` with the normal CDF Phi, as torch.nn.functional.gelu."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (wide * _distribution(wide)).astype(x.dtype)


@gelu.defjvp
def _gelu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    # One array is saved for the backward pass, where differentiating the formula would
    # save four; these are the widest activations of a transformer.
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    density = jnp.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
    slope = _distribution(wide) + wide * density
    return gelu(x), slope.astype(x.dtype) * tangent


def _distribution(x: Array) -> Array:
    """Cumulative distribution function of the standard normal distribution."""
    return 0.5 * (1 + erf(x * math.sqrt(0.5)))
