"""The context of a forward pass, and how its blocks run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.nn.noise import Noise
from credit_jax.nn.parameters import Parameter, param_spec_of
from credit_jax.parallel.compiler import loops_hold_collectives
from credit_jax.parallel.mesh.axes import MeshAxes
from credit_jax.parallel.params.fsdp import gather
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.remat import Remat
from credit_jax.parallel.params.sharding import ShardingRules
from credit_jax.parallel.rows.layout import Field, Layout, block_layout
from credit_jax.parallel.scopes import PARAMETERS


@dataclass
class BlockCount:
    """Numbers the blocks of one forward pass as it is traced.

    Attributes:
        total: number of blocks of the model, if it is known.
        counted: number of blocks that are traced.
    """

    total: int = 0
    counted: int = 0

    def add(self, num: int) -> int:
        """Adds `num` blocks; returns the number of the first of them."""
        self.counted += num
        return self.counted - num


@dataclass(frozen=True)
class Context:
    """Everything but weights and inputs that a forward pass depends on.

    Attributes:
        axes: mesh axes inside `shard_map`; `MeshAxes()` on one device.
        rules: sharding of parameters.
        precision: dtypes of the forward and of gradient sums.
        remat: the rematerialization policy of blocks.
        blocks: numbers the blocks, where the policy depends on it.
        capture_intermediates: if given, receives each block's output, in order.
        float8_matrices: if given, receives (input, output) channels of each matrix that
            is multiplied in float8, as the forward pass is traced.
        key: dropout key of this forward, equal on all devices; None in evaluation.
        noise: source of normal noise, in training and in evaluation.
        first_sample, sample_stride: the local samples have the global numbers
            first_sample, first_sample + sample_stride, ...
        num_members: ensemble members per sample, consecutive along the batch dim:
            sample 0 member 0, sample 0 member 1, ...
    """

    axes: MeshAxes = field(default_factory=MeshAxes)
    rules: ShardingRules = field(default_factory=ShardingRules)
    precision: Precision = field(default_factory=Precision)
    remat: Remat = field(default_factory=Remat)
    blocks: BlockCount | None = None
    capture_intermediates: list[Field] | None = None
    float8_matrices: list[tuple[int, int]] | None = None
    key: Array | None = None
    noise: Noise | None = None
    first_sample: Array | int = 0
    sample_stride: int = 1
    num_members: int = 1

    @property
    def training(self) -> bool:
        """Whether this forward runs in training mode."""
        return self.key is not None

    def samples(self, batch: int) -> Array:
        """Number of each of `batch` local entries in the global batch, (batch,).

        Member m of sample s has number s * num_members + m.
        """
        local = jnp.arange(batch)
        sample = self.first_sample + self.sample_stride * (local // self.num_members)
        return sample * self.num_members + local % self.num_members

    def fold_in(self, data: Array | int) -> Context:
        """A context whose keys are folded with `data`, so that call sites differ."""
        key = None if self.key is None else jax.random.fold_in(self.key, data)
        noise = None if self.noise is None else self.noise.fold_in(data)
        return replace(self, key=key, noise=noise)

    def normal_field(
        self, name: str, field: Field, channels: int | None = None
    ) -> Float[Array, "batch rows lon channel"]:
        """N(0, 1) noise at every sample and point of a field, float32.

        Args:
            name: of the call site; unique within a block.
            field: its samples, rows and columns.
            channels: of the noise; by default those of the field.

        Raises:
            ValueError: the forward pass has no noise.
        """
        batch, _, columns, width = field.data.shape
        return self._noise(name).normal_field(
            name, self.samples(batch), field.layout, columns, channels or width
        )

    def normal_vector(
        self, name: str, batch: int, size: int
    ) -> Float[Array, "batch size"]:
        """A vector of N(0, 1) noise for each of `batch` local samples, float32.

        Raises:
            ValueError: the forward pass has no noise.
        """
        return self._noise(name).normal_vector(name, self.samples(batch), size)

    def _noise(self, name: str) -> Noise:
        if self.noise is None:
            raise ValueError(
                f"the model draws noise ({name}), but the forward pass was given none; "
                "pass Noise(key): another key gives another member"
            )
        return self.noise

    def rows(self, size: int, dim: int = 1) -> Layout:
        """Block layout of `size` rows over the domain axis."""
        return block_layout(size, self.axes.num_domain, self.axes.domain, dim)

    def run(self, block: nnx.Module, *args: Any, **static: Any) -> Any:
        """Runs `block(*args, context, **static)` with gathered weights, rematerialized.

        Running statistics of batch norms below the block are updated.
        """
        graph, params, stats = nnx.split(block, Parameter, nnx.BatchStat)

        def body(
            params: Any, stats: Any, key: Any, noise: Any, *args: Any
        ) -> tuple[Any, Any]:
            merged: Any = nnx.merge(graph, self._gathered(params), stats)
            output = merged(*args, replace(self, key=key, noise=noise), **static)
            return output, nnx.state(merged, nnx.BatchStat)

        run = self.remat.block(body, keep=self._num_kept_gathered(1) == 1)
        output, stats = run(params, stats, self.key, self.noise, *args)
        nnx.update(block, stats)
        return self._captured(output)

    def scan(self, blocks: nnx.Module, carry: Any, num: int) -> Any:
        """Runs `num` stacked blocks in sequence: carry = block(carry, context).

        One `lax.scan`, unrolled on platforms where loops cannot hold collectives.
        Running statistics of batch norms below the blocks are updated.

        Args:
            blocks: made by `nn.parameters.stack_blocks`.
            carry: the blocks keep its structure and layout.
            num: number of blocks.
        """
        graph, *states = nnx.split(blocks, Parameter, nnx.BatchStat)
        leaves, tree = jax.tree.flatten(states)

        def body(carry: Any, inputs: Any) -> tuple[Any, Any]:
            index, leaves = inputs
            params, stats = jax.tree.unflatten(tree, leaves)
            block: Any = nnx.merge(graph, self._gathered(params), stats)
            carry = block(carry, self.fold_in(index))
            return carry, nnx.state(block, nnx.BatchStat)

        loops = self.axes.num_devices == 1 or loops_hold_collectives()
        gathered_again = num - self._num_kept_gathered(num)
        stats = []
        for part, keep in (
            (slice(0, gathered_again), False),
            (slice(gathered_again, num), True),
        ):
            turns = part.stop - part.start
            if turns:
                in_loop = loops and turns > 1
                run = self.remat.block(body, keep=keep, in_loop=in_loop)
                mine = leaves if turns == num else [leaf[part] for leaf in leaves]
                inputs = (jnp.arange(part.start, part.stop), mine)
                unroll = 1 if loops else turns
                carry, updated = jax.lax.scan(run, carry, inputs, unroll=unroll)
                stats.append(updated)
        nnx.update(blocks, _joined(stats))
        return self._captured(carry)

    def _captured(self, output: Any) -> Any:
        if self.capture_intermediates is not None and isinstance(output, Field):
            self.capture_intermediates.append(output)
        return output

    def _num_kept_gathered(self, num: int) -> int:
        """How many of the next `num` blocks keep gathered parameters."""
        first = self.blocks.add(num) if self.blocks else 0
        if not self.rules.shard or self.axes.num_shard == 1:
            return num
        return self.remat.kept_of(first, num, self.blocks.total if self.blocks else 0)

    @jax.named_scope(PARAMETERS)
    def _gathered(self, params: Any) -> Any:
        """Parameters of one block, gathered over dp_shard, in the compute dtype."""

        def gathered(variable: nnx.Variable) -> nnx.Variable:
            param_spec = param_spec_of(variable).unstack()
            weight = variable[...]
            return variable.replace(
                gather(weight, param_spec, self.rules, self.axes, self.precision)
            )

        return jax.tree.map(
            gathered, params, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
        )


def _joined(parts: Sequence[Any]) -> Any:
    """Concatenates trees of stacked arrays along the stacked dim."""
    if len(parts) == 1:
        return parts[0]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
