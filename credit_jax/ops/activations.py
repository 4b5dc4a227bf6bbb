"""Gates of channel attention, factors in (0, 1) of channel means, and GELU."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import erf
from jaxtyping import Array, Float

Pooled = Float[Array, "batch channel"]


# Kernel (in, out) of a layer, and its bias (out,), if it has one.
Weights = tuple[Array, Array | None]


def squeeze_gate(pooled: Pooled, squeeze: Weights, expand: Weights) -> Pooled:
    """sigmoid(relu(pooled @ squeeze + bias) @ expand + bias) of the channel means."""
    # With biases the gate of torchvision's SqueezeExcitation, without them that of
    # CREDIT's SCSEAttention.
    x = jax.nn.relu(_affine(pooled, *squeeze))
    return jax.nn.sigmoid(_affine(x, *expand))


def _affine(x: Array, kernel: Array, bias: Array | None) -> Array:
    """Returns `x @ kernel + bias`, by default without the bias."""
    product = jnp.matmul(x, kernel)
    lead = (1,) * (product.ndim - 1)
    return product if bias is None else product + bias.reshape(*lead, -1)


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
