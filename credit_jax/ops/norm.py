"""Normalisations over the last dim."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float


def layer_norm(
    x: Float[Array, "*batch channel"],
    scale: Float[Array, " channel"],
    bias: Float[Array, " channel"],
    *,
    epsilon: float = 1e-5,
) -> Float[Array, "*batch channel"]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over channels.

    The variance is biased, as in CREDIT's LayerNorm and torch.nn.LayerNorm. Statistics
    are taken in float32 or wider.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    centred = wide - wide.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    normal = (centred * lax.rsqrt(variance + epsilon)).astype(x.dtype)
    lead = (1,) * (x.ndim - 1)
    return normal * scale.reshape(*lead, -1) + bias.reshape(*lead, -1)
