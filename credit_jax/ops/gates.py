"""Gates of channel attention: factors in (0, 1) from the channel means."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def squeeze_gate(
    pooled: Float[Array, "batch channel"],
    squeeze: Float[Array, "channel hidden"],
    expand: Float[Array, "hidden channel"],
    *,
    squeeze_bias: Float[Array, " hidden"] | None = None,
    expand_bias: Float[Array, " channel"] | None = None,
) -> Float[Array, "batch channel"]:
    """sigmoid(relu(pooled @ squeeze + squeeze_bias) @ expand + expand_bias).

    With biases the gate of torchvision's SqueezeExcitation, without that of CREDIT's
    SCSEAttention.

    Args:
        pooled: mean of each channel over the globe.
        squeeze, expand: the two layers.
        squeeze_bias, expand_bias: None is no bias.
    """
    hidden = _add(jnp.matmul(pooled, squeeze), squeeze_bias)
    return jax.nn.sigmoid(_add(jnp.matmul(jax.nn.relu(hidden), expand), expand_bias))


def neighbor_gate(
    pooled: Float[Array, "batch channel"], kernel: Float[Array, " taps"]
) -> Float[Array, "batch channel"]:
    """Sigmoid of a convolution over neighboring channels: CREDIT's ECABlock.

    Args:
        pooled: mean of each channel over the globe.
        kernel: an odd number of taps (`neighbor_taps`); beyond the first and the last
            channel are zeros.
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


def neighbor_taps(channels: int, *, gamma: float = 2, offset: float = 1) -> int:
    """Kernel size of ECABlock: |(log2(channels) + offset) / gamma|, made odd.

    >>> [neighbor_taps(channels) for channels in (8, 64, 128, 512)]
    [3, 3, 5, 5]
    """
    taps = int(abs((math.log2(channels) + offset) / gamma))
    return taps if taps % 2 else taps + 1


def _add(x: Array, bias: Array | None) -> Array:
    return x if bias is None else x + bias[None]
