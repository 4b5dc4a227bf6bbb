"""Dropout whose mask depends on the key and the global position alone."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array

from credit_jax.ops.random_bits import random_bits


def keep_mask(key: Array, high: Array, low: Array, rate: float) -> Array:
    """True with probability 1 - rate, a pure function of (key, high, low).

    Args:
        key: typed PRNG key.
        high, low: two halves of each element's global position; they broadcast.
        rate: probability of dropping.
    """
    threshold = min(round(rate * 2**32), 2**32 - 1)
    return random_bits(key, high, low) >= jnp.uint32(threshold)


def drop(x: Array, keep: Array, rate: float) -> Array:
    """Scaled values x / (1 - rate) where kept, else 0, as torch's dropout.

    A rate of 1 drops all, with a gradient of 0.
    """
    scale = 1.0 / (1.0 - rate) if rate < 1.0 else 0.0
    return jnp.where(keep, x * scale, jnp.zeros((), x.dtype))
