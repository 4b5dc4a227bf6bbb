"""Uniform random numbers by global position."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float32

from credit_jax.ops.random_bits import random_bits


def random_uniform(key: Array, high: Array, low: Array) -> Float32[Array, "*shape"]:
    """Returns uniform draws in [0, 1), an elementwise function of (key, high, low).

    The values are multiples of 2**-24.

    Args:
        key: typed PRNG key, or several, see `random_bits`.
        high, low: upper and lower 32 bits of the global position, integers that
            broadcast.
    """
    bits = random_bits(key, high, low)
    return (bits >> 8).astype(jnp.float32) * 2.0**-24
