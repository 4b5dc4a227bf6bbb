"""Normal random numbers by global position, by the Box-Muller transform (1958)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.ops.random_bits import random_words


def random_normal(
    key: Array, high: Array, low: Array, dtype: Any = jnp.float32
) -> Float[Array, "*shape"]:
    """Returns draws from N(0, 1), an elementwise function of (key, high, low).

    sqrt(-2 ln u) cos(2 pi v), with u in (0, 1] from the upper 24 bits of one random
    word and v in [0, 1) from those of another. The largest magnitude is 5.9.

    Args:
        key: typed PRNG key, or several, see `random_bits`.
        high, low: upper and lower 32 bits of the global position, integers that
            broadcast.
        dtype: dtype that the transform computes in. Compilers round the logarithm and
            the cosine differently in programs of other shapes: a comparison in float64
            needs draws of float64, which are those of float32 but for rounding.
    """
    first, second = random_words(key, high, low)
    u = (first >> 8).astype(dtype) * 2.0**-24 + 2.0**-25
    v = (second >> 8).astype(dtype) * 2.0**-24
    return jnp.sqrt(-2.0 * jnp.log(u)) * jnp.cos(2 * np.pi * v)
