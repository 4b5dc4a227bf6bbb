"""Random noise inside a model, in training and in evaluation.

A draw is a function of the key, the name of the call site and the global position
(sample, row, column, channel), so it is the same on every mesh. Ensemble members have
different keys, or different indices along the batch dim. With a key for each sample, a
draw does not depend on the index of the sample in its batch either.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from credit_jax.ops.random import random_normal, random_uniform
from credit_jax.ops.vma import pvary, varying_axes
from credit_jax.parallel.rows.layout import Layout


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Noise:
    """The source of the noise of a forward pass.

    Attributes:
        key: typed PRNG key, equal on all devices; or (batch,) keys of local
            samples.
        replacements: global arrays that replace draws, by name of the call site, for
            comparisons with other implementations: fields (samples, lat, lon, channel),
            vectors (samples, size) or integers (samples,).
    """

    key: Array
    replacements: Mapping[str, Array] = field(default_factory=dict)

    def fold_in(self, data: Array | int) -> Noise:
        """Returns the noise with `data`, such as the index of a block, folded in."""
        return Noise(_fold_in(self.key, data), self.replacements)

    def normal_field(
        self,
        name: str,
        samples: Array,
        layout: Layout,
        columns: int,
        channels: int,
        dtype: Any = jnp.float32,
    ) -> Float[Array, "batch rows lon channel"]:
        """Returns N(0, 1) noise on the local samples and rows of a field."""
        draw = partial(random_normal, dtype=dtype)
        return self._field(draw, name, samples, layout, columns, channels)

    def uniform_field(
        self, name: str, samples: Array, layout: Layout, columns: int, channels: int
    ) -> Float[Array, "batch rows lon channel"]:
        """Returns uniform noise in [0, 1) on local samples and rows, float32."""
        return self._field(random_uniform, name, samples, layout, columns, channels)

    def _field(
        self,
        draw: Callable[..., Array],
        name: str,
        samples: Array,
        layout: Layout,
        columns: int,
        channels: int,
    ) -> Array:
        if name in self.replacements:
            full = jnp.take(self.replacements[name], samples, axis=0)
            rows = jnp.maximum(layout.global_rows(), 0)[:, None]
            return full[:, rows, layout.columns(columns)]
        rows = jnp.maximum(layout.global_rows(), 0)
        # Two numbers: the position of a value in a batch does not fit in 32 bits.
        high = self._indices(samples)[:, None] * layout.size + rows[None, :]
        low = layout.columns(columns)[..., None] * channels
        low = low + jnp.arange(channels)[None, None]
        drawn = draw(self._key_of(name), high[:, :, None, None], low[None])
        return _varying_as(high, drawn)

    def normal_vector(
        self, name: str, samples: Array, size: int, dtype: Any = jnp.float32
    ) -> Float[Array, "batch size"]:
        """Returns `size` draws of N(0, 1) for each local sample."""
        if name in self.replacements:
            return jnp.take(self.replacements[name], samples, axis=0)
        key = self._key_of(name)
        indices = self._indices(samples)
        drawn = random_normal(key, indices[:, None], jnp.arange(size)[None], dtype)
        return _varying_as(samples, drawn)

    def uniform_integer(
        self, name: str, samples: Array, bound: int
    ) -> Int[Array, " batch"]:
        """Returns a random integer in [0, bound) for each local sample."""
        if name in self.replacements:
            return jnp.take(self.replacements[name], samples, axis=0)
        indices = self._indices(samples)
        drawn = random_uniform(self._key_of(name), indices, jnp.zeros_like(samples))
        return _varying_as(samples, jnp.floor(drawn * bound).astype(jnp.int32))

    def _key_of(self, name: str) -> Array:
        # Python's own hash of a string differs from process to process.
        return _fold_in(self.key, zlib.crc32(name.encode()) & 0x7FFFFFFF)

    def _indices(self, samples: Array) -> Array:
        """The indices of samples in positions; 0 for samples with their own keys."""
        return samples * 0 if self.key.ndim else samples


def _fold_in(key: Array, data: Array | int) -> Array:
    """Folds `data` into a key, or into each of (batch,) keys."""
    if key.ndim:
        return jax.vmap(lambda single_key: jax.random.fold_in(single_key, data))(key)
    return jax.random.fold_in(key, data)


def _varying_as(position: Array, drawn: Array) -> Array:
    """Casts draws to varying over the mesh axes of their positions.

    The random bits lack this type. Without it, the gradient of a parameter that
    multiplies the noise would be summed over devices before it is multiplied by it.
    """
    return pvary(drawn, sorted(varying_axes(position)))
