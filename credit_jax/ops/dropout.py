"""Dropout whose mask depends only on the key and the global position."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

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
