"""Random bits by position: Threefry-2x32 in counter mode."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.extend.random import threefry2x32_p
from jaxtyping import Array, UInt32

from credit_jax.ops.vma import match_vma


def random_bits(key: Array, high: Array, low: Array) -> UInt32[Array, "*shape"]:
    """Returns uniform 32-bit integers, an elementwise function of (key, high, low).

    Inside `shard_map` each device draws its own elements, and the result does not
    depend on the mesh; `jax.random` has no draw by global position.

    Args:
        key: typed PRNG key, or a key for each index of the leading dims of the
            positions.
        high, low: upper and lower 32 bits of the global position, integers that
            broadcast.
    """
    return random_words(key, high, low)[0]


def random_words(
    key: Array, high: Array, low: Array
) -> tuple[UInt32[Array, "*shape"], UInt32[Array, "*shape"]]:
    """Returns two independent draws of `random_bits` for each element."""
    words = jax.random.key_data(key)
    shape = jnp.broadcast_shapes(high.shape, low.shape)
    counters = [jnp.broadcast_to(c.astype(jnp.uint32), shape) for c in (high, low)]
    wide = words.reshape(*key.shape, *(1,) * (len(shape) - key.ndim), 2)
    keys = [jnp.broadcast_to(wide[..., i], shape) for i in range(2)]
    first, second = threefry2x32_p.bind(*match_vma(*keys, *counters))
    return first, second
