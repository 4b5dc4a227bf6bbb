"""The context of a forward pass: all but weights and inputs, noise included.

A draw is a function of the key, the name of the call site and the global position
(sample, row, column, channel), so it is the same on every mesh. Ensemble members have
different keys, or different indices along the batch dim. With a key for each sample, a
draw does not depend on the index of the sample in its batch either.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from credit_jax.ops.custom_vjp import pvary, varying_axes
from credit_jax.ops.random import random_normal, random_uniform
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.params.fsdp import ShardingRules
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.remat import Remat
from credit_jax.parallel.rows.layout import Field, Layout, block_layout

PointNoise = Float[Array, "batch rows lon channel"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Noise:
    """The source of the noise of a forward pass."""

    # Typed PRNG key, equal on all devices; or (batch,) keys of local samples.
    key: Array
    # Global arrays that replace draws, by name of the call site, for comparisons with
    # other implementations: fields (samples, lat, lon, channel), vectors (samples,
    # size) or integers (samples,).
    replacements: Mapping[str, Array] = field(default_factory=dict)

    def fold_in(self, data: Array | int) -> Noise:
        """Returns the noise with `data`, such as the index of a block, folded in."""
        return Noise(_fold_in(self.key, data), self.replacements)

    def field(
        self,
        draw: Callable[..., Array],
        name: str,
        samples: Array,
        layout: Layout,
        columns: int,
        channels: int,
    ) -> PointNoise:
        """Draws by a function of `ops.random` for local samples and rows of a field."""
        rows = jnp.maximum(layout.global_rows(), 0)
        if name in self.replacements:
            full = jnp.take(self.replacements[name], samples, axis=0)
            return full[:, rows[:, None], layout.columns(columns)]
        # Two numbers: the position of a value in a batch does not fit in 32 bits.
        low = layout.columns(columns)[..., None] * channels
        low = low + jnp.arange(channels)[None, None]

        def drawn(key: Array, indices: Array) -> Array:
            high = indices[:, None] * layout.size + rows[None, :]
            return draw(key, high[:, :, None, None], low[None])

        return self.draw(drawn, name, samples, rows)

    def draw(
        self, draw: Callable[[Array, Array], Array], name: str, *positions: Array
    ) -> Array:
        """Draws by a function of a key and the indices of samples, the first positions.

        Draws vary over the mesh axes of all positions.
        """
        samples = positions[0]
        if name in self.replacements:
            return jnp.take(self.replacements[name], samples, axis=0)
        # Python's own hash of a string differs from process to process.
        key = _fold_in(self.key, zlib.crc32(name.encode()) & 0x7FFFFFFF)
        # Samples with their own keys have the index 0.
        drawn = draw(key, samples * 0 if self.key.ndim else samples)
        # The random bits lack this type. Without it, the gradient of a parameter that
        # multiplies the noise would be summed over devices before it is multiplied by
        # it.
        return pvary(
            drawn, sorted({axis for x in positions for axis in varying_axes(x)})
        )


def _fold_in(key: Array, data: Array | int) -> Array:
    """Folds `data` into a key, or into each of (batch,) keys."""
    if key.ndim:
        return jax.vmap(lambda single_key: jax.random.fold_in(single_key, data))(key)
    return jax.random.fold_in(key, data)


@dataclass
class BlockCount:
    """Numbers the blocks of one forward pass as it is traced."""

    total: int = 0  # number of blocks of the model, or 0 if unknown
    counted: int = 0  # number of blocks traced so far

    def add(self, num: int) -> int:
        """Adds `num` blocks and returns the index of the first of them."""
        self.counted += num
        return self.counted - num


@dataclass(frozen=True)
class Context:
    """Everything but weights and inputs that a forward pass depends on."""

    # Mesh axes inside `shard_map`; `MeshAxes()` on one device.
    axes: MeshAxes = field(default_factory=MeshAxes)
    # Sharding of parameters.
    rules: ShardingRules = field(default_factory=ShardingRules)
    # Dtypes of the forward pass and of gradient sums.
    precision: Precision = field(default_factory=Precision)
    # The rematerialization policy of blocks.
    remat: Remat = field(default_factory=Remat)
    unroll_blocks: int = 0  # stacks of at most this many blocks are unrolled on GPUs
    # Numbers the blocks if `remat` depends on their index.
    blocks: BlockCount | None = None
    # If given, receives the output of every `run_block` and `scan_blocks` that returns
    # a field, in order.
    capture_intermediates: list[Field] | None = None
    # If given, receives (input, output) channels of each matrix that is multiplied in
    # float8, as the forward pass is traced.
    float8_matrices: list[tuple[int, int]] | None = None
    # Dropout key of this forward pass, equal on all devices; None in evaluation.
    key: Array | None = None
    noise: Noise | None = None  # source of random noise, in training and in evaluation
    # The local samples have the global indices first_sample, first_sample +
    # sample_stride, ...
    first_sample: Array | int = 0
    sample_stride: int = 1
    # Ensemble members per sample, consecutive along the batch dim: sample 0 member 0,
    # sample 0 member 1, ...
    num_members: int = 1
    # Index of the block within the stack that `scan_blocks` runs.
    block: Array | int = 0

    @property
    def training(self) -> bool:
        """Whether this forward pass runs in training mode."""
        return self.key is not None

    def samples(self, batch: int) -> Array:
        """Returns the global index of each of `batch` local entries, (batch,)."""
        local = jnp.arange(batch)
        sample = self.first_sample + self.sample_stride * (local // self.num_members)
        return sample * self.num_members + local % self.num_members

    def fold_in(self, data: Array | int) -> Context:
        """Returns a context with `data` folded into the keys of dropout and noise."""
        key = None if self.key is None else jax.random.fold_in(self.key, data)
        noise = None if self.noise is None else self.noise.fold_in(data)
        return replace(self, key=key, noise=noise)

    def normal_field(
        self, name: str, field: Field, channels: int | None = None
    ) -> PointNoise:
        """N(0, 1) noise at every sample and point of a field, in `precision.wide`."""
        batch, _, columns, width = field.data.shape
        draw = partial(random_normal, dtype=self.precision.wide)
        samples, width = self.samples(batch), channels or width
        # The name of a call site is unique within a block.
        noise = self._noise(name)
        return noise.field(draw, name, samples, field.layout, columns, width)

    def normal_vector(
        self, name: str, batch: int, size: int
    ) -> Float[Array, "batch size"]:
        """`size` draws of N(0, 1) for each local sample, in `precision.wide`."""
        columns, wide = jnp.arange(size)[None], self.precision.wide
        return self._noise(name).draw(
            lambda key, indices: random_normal(key, indices[:, None], columns, wide),
            name,
            self.samples(batch),
        )

    def uniform_field(self, name: str, field: Field) -> PointNoise:
        """Returns uniform noise in [0, 1) at every sample and point, float32."""
        batch, _, columns, channels = field.data.shape
        samples, layout = self.samples(batch), field.layout
        noise = self._noise(name)
        return noise.field(random_uniform, name, samples, layout, columns, channels)

    def uniform_integer(
        self, name: str, batch: int, bound: int
    ) -> Int[Array, " batch"]:
        """Returns an integer in [0, bound) for each local sample; bound <= 2**24."""

        def draw(key: Array, indices: Array) -> Array:
            drawn = random_uniform(key, indices, jnp.zeros_like(indices))
            return jnp.floor(drawn * bound).astype(jnp.int32)

        return self._noise(name).draw(draw, name, self.samples(batch))

    def _noise(self, name: str) -> Noise:
        if self.noise is None:
            raise ValueError(
                f"the model draws noise ({name}), but the forward pass was given none; "
                "pass Noise(key): another key gives another member"
            )
        return self.noise

    def rows(self, size: int, dim: int = 1) -> Layout:
        """Returns the block layout of `size` rows over the domain axis."""
        return block_layout(size, self.axes.num_domain, self.axes.domain, dim)
