"""Dropout of values, and of whole paths of a sample."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from credit_jax.ops.random import random_bits


def keep_mask(key: Array, high: Array, low: Array, rate: float) -> Array:
    """Returns a mask, True with probability 1 - rate, a pure function of its arguments.

    Args:
        key: typed PRNG key.
        high, low: upper and lower 32 bits of the global position of each element,
            integers that broadcast.
        rate: probability of dropping.
    """
    threshold = min(round(rate * 2**32), 2**32 - 1)
    return random_bits(key, high, low) >= jnp.uint32(threshold)


def drop(x: Array, keep: Array, rate: float) -> Array:
    """Returns x / (1 - rate) where `keep` is True, else 0, as torch's dropout.

    With a rate of 1, values and gradients are 0.
    """
    scale = 1.0 / (1.0 - rate) if rate < 1.0 else 0.0
    return jnp.where(keep, x * scale, jnp.zeros((), x.dtype))


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
