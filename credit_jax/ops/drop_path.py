"""Stochastic depth: drops a branch of a residual block per sample."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from credit_jax.ops.random import random_bits


def drop_path(
    x: Float[Array, "*shape"],
    key: Array,
    samples: Int[Array, " batch"],
    rate: float | Array,
    *,
    branch: int = 0,
) -> Float[Array, "*shape"]:
    """Returns x / (1 - rate) with probability 1 - rate, else 0, drawn per sample.

    This is timm's DropPath. The draw depends on the key, the number of the sample and
    the branch alone.

    Args:
        x: (batch, ...), the output of the branch.
        key: typed PRNG key of the block.
        samples: (batch,), global number of each sample.
        rate: probability of dropping, below 1; may be an array.
        branch: number of the branch within the block.
    """
    bits = random_bits(key, samples, jnp.full_like(samples, branch))
    uniform = bits.astype(jnp.float32) * jnp.float32(2.0**-32)
    scale = jnp.where(uniform >= rate, 1.0 / (1.0 - jnp.asarray(rate)), 0.0)
    shape = (-1,) + (1,) * (x.ndim - 1)
    return x * scale.reshape(shape).astype(x.dtype)
