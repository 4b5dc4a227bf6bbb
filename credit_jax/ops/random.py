"""Random numbers and dropout by global position: Threefry-2x32 in counter mode."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p
from jaxtyping import Array, Float, Float32, Int, UInt32

from credit_jax.ops.custom_vjp import match_vma


def random_bits(key: Array, high: Array, low: Array) -> UInt32[Array, "*shape"]:
    """Returns uniform 32-bit integers, an elementwise function of (key, high, low)."""
    # Inside `shard_map` each device draws its own elements, and the result does not
    # depend on the mesh; `jax.random` has no draw by global position.
    return random_words(key, high, low)[0]


def random_words(
    key: Array, high: Array, low: Array
) -> tuple[UInt32[Array, "*shape"], UInt32[Array, "*shape"]]:
    """Returns two independent draws of `random_bits` for each element."""
    # One key, or one for each index of the leading dims of the positions, whose upper
    # and lower 32 bits are `high` and `low`.
    words = jax.random.key_data(key)
    shape = jnp.broadcast_shapes(high.shape, low.shape)
    counters = [jnp.broadcast_to(c.astype(jnp.uint32), shape) for c in (high, low)]
    wide = words.reshape(*key.shape, *(1,) * (len(shape) - key.ndim), 2)
    keys = [jnp.broadcast_to(wide[..., i], shape) for i in range(2)]
    first, second = threefry2x32_p.bind(*match_vma(*keys, *counters))
    return first, second


def random_uniform(key: Array, high: Array, low: Array) -> Float32[Array, "*shape"]:
    """Returns uniform draws in [0, 1), multiples of 2**-24, by (key, high, low)."""
    bits = random_bits(key, high, low)
    return (bits >> 8).astype(jnp.float32) * 2.0**-24


def random_normal(
    key: Array, high: Array, low: Array, dtype: Any = jnp.float32
) -> Float[Array, "*shape"]:
    """Returns draws from N(0, 1), an elementwise function of (key, high, low)."""
    # sqrt(-2 ln u) cos(2 pi v), with u in (0, 1] from the upper 24 bits of one random
    # word and v in [0, 1) from those of another. The largest magnitude is 5.9.
    # Compilers round the logarithm and the cosine differently in programs of other
    # shapes: a comparison in float64 needs draws of float64, which are those of float32
    # but for rounding.
    first, second = random_words(key, high, low)
    u = (first >> 8).astype(dtype) * 2.0**-24 + 2.0**-25
    v = (second >> 8).astype(dtype) * 2.0**-24
    return jnp.sqrt(-2.0 * jnp.log(u)) * jnp.cos(2 * np.pi * v)


def keep_mask(key: Array, high: Array, low: Array, rate: float) -> Array:
    """A mask, True with probability 1 - rate, a pure function of its arguments."""
    threshold = min(round(rate * 2**32), 2**32 - 1)
    return random_bits(key, high, low) >= jnp.uint32(threshold)


def drop(x: Array, keep: Array, rate: float) -> Array:
    """Returns x / (1 - rate) where `keep` is True, else 0, as torch's dropout."""
    # With a rate of 1, values and gradients are 0.
    scale = 1.0 / (1.0 - rate) if rate < 1.0 else 0.0
    return jnp.where(keep, x * scale, jnp.zeros((), x.dtype))


def drop_path(
    x: Float[Array, "*shape"],
    key: Array,
    samples: Int[Array, " batch"],  # global number of each sample
    rate: float | Array,
    *,
    branch: int = 0,  # its number within the block
) -> Float[Array, "*shape"]:
    """Returns x / (1 - rate) with probability 1 - rate, else 0: timm's DropPath."""
    # The draw depends on the key, the number of the sample and the branch alone.
    bits = random_bits(key, samples, jnp.full_like(samples, branch))
    uniform = bits.astype(jnp.float32) * jnp.float32(2.0**-32)
    scale = jnp.where(uniform >= rate, 1.0 / (1.0 - jnp.asarray(rate)), 0.0)
    shape = (-1,) + (1,) * (x.ndim - 1)
    return x * scale.reshape(shape).astype(x.dtype)
