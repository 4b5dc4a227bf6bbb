"""The context of a forward pass: all that it depends on but weights and inputs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from credit_jax.nn.noise import Noise
from credit_jax.parallel.mesh.axes import MeshAxes
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.remat import Remat
from credit_jax.parallel.params.sharding import ShardingRules
from credit_jax.parallel.rows.layout import Field, Layout, block_layout


@dataclass
class BlockCount:
    """Numbers the blocks of one forward pass as it is traced.

    Attributes:
        total: number of blocks of the model, or 0 if unknown.
        counted: number of blocks traced so far.
    """

    total: int = 0
    counted: int = 0

    def add(self, num: int) -> int:
        """Adds `num` blocks and returns the index of the first of them."""
        self.counted += num
        return self.counted - num


@dataclass(frozen=True)
class Context:
    """Everything but weights and inputs that a forward pass depends on.

    Attributes:
        axes: mesh axes inside `shard_map`; `MeshAxes()` on one device.
        rules: sharding of parameters.
        precision: dtypes of the forward pass and of gradient sums.
        remat: the rematerialization policy of blocks.
        unroll_blocks: stacks of at most this many blocks are unrolled on GPUs.
        blocks: numbers the blocks if `remat` depends on their index.
        capture_intermediates: if given, receives the output of every `run_block`
            and `scan_blocks` that returns a field, in order.
        float8_matrices: if given, receives (input, output) channels of each matrix that
            is multiplied in float8, as the forward pass is traced.
        key: dropout key of this forward pass, equal on all devices; None in evaluation.
        noise: source of random noise, in training and in evaluation.
        first_sample, sample_stride: the local samples have the global indices
            first_sample, first_sample + sample_stride, ...
        num_members: ensemble members per sample, consecutive along the batch dim:
            sample 0 member 0, sample 0 member 1, ...
        block: index of the block within the stack that `scan_blocks` runs.
    """

    axes: MeshAxes = field(default_factory=MeshAxes)
    rules: ShardingRules = field(default_factory=ShardingRules)
    precision: Precision = field(default_factory=Precision)
    remat: Remat = field(default_factory=Remat)
    unroll_blocks: int = 0
    blocks: BlockCount | None = None
    capture_intermediates: list[Field] | None = None
    float8_matrices: list[tuple[int, int]] | None = None
    key: Array | None = None
    noise: Noise | None = None
    first_sample: Array | int = 0
    sample_stride: int = 1
    num_members: int = 1
    block: Array | int = 0

    @property
    def training(self) -> bool:
        """Whether this forward pass runs in training mode."""
        return self.key is not None

    def samples(self, batch: int) -> Array:
        """Returns the global index of each of `batch` local entries, (batch,).

        Member m of sample s has index s * num_members + m.
        """
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
    ) -> Float[Array, "batch rows lon channel"]:
        """Returns N(0, 1) noise at every sample and point of a field, `precision.wide`.

        Args:
            name: name of the call site, unique within a block.
            field: gives samples, rows and columns.
            channels: number of channels of the noise; None for those of the field.

        Raises:
            ValueError: the context has no noise.
        """
        batch, _, columns, width = field.data.shape
        return self._noise(name).normal_field(
            name,
            self.samples(batch),
            field.layout,
            columns,
            channels or width,
            self.precision.wide,
        )

    def normal_vector(
        self, name: str, batch: int, size: int
    ) -> Float[Array, "batch size"]:
        """Returns `size` draws of N(0, 1) for each of `batch` local samples.

        They are of `precision.wide`: float32 or wider.
        """
        return self._noise(name).normal_vector(
            name, self.samples(batch), size, self.precision.wide
        )

    def uniform_field(
        self, name: str, field: Field
    ) -> Float[Array, "batch rows lon channel"]:
        """Returns uniform noise in [0, 1) at every sample and point, float32."""
        batch, _, columns, channels = field.data.shape
        return self._noise(name).uniform_field(
            name, self.samples(batch), field.layout, columns, channels
        )

    def uniform_integer(
        self, name: str, batch: int, bound: int
    ) -> Int[Array, " batch"]:
        """Returns an integer in [0, bound) for each local sample; bound <= 2**24."""
        return self._noise(name).uniform_integer(name, self.samples(batch), bound)

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
