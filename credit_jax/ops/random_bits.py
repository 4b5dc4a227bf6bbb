"""Random bits by position: Threefry-2x32 in counter mode."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p
from jaxtyping import Array, UInt32

from credit_jax.ops.vma import match_vma


def random_bits(key: Array, high: Array, low: Array) -> UInt32[Array, "*shape"]:
    """Uniform 32-bit integers, a pure function of (key, high, low) element by element.

    The draw of an element does not depend on the sharding; `jax.random` on a sharded
    array does not guarantee that.

    Args:
        key: typed PRNG key.
        high, low: two halves of the global position, integers that broadcast.
    """
    words = jax.random.key_data(key)
    shape = jnp.broadcast_shapes(high.shape, low.shape)
    counters = [jnp.broadcast_to(c.astype(jnp.uint32), shape) for c in (high, low)]
    keys = [jnp.broadcast_to(word, shape) for word in words]
    bits, _ = threefry2x32_p.bind(*match_vma(*keys, *counters))
    return bits
