"""What a forward pass knows besides weights and inputs: mesh, precision, noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from credit_jax.nn.batch_norm import BatchStats
from credit_jax.nn.parameters import param_spec_of
from credit_jax.parallel.compiler import loops_hold_collectives
from credit_jax.parallel.mesh.axes import MeshAxes
from credit_jax.parallel.params.fsdp import gather
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.remat import Remat
from credit_jax.parallel.params.spec import ShardingRules
from credit_jax.parallel.rows.layout import Field, Layout, block_layout


@dataclass
class BlockCount:
    """Numbers the blocks of one forward pass as it is traced.

    Attributes:
        total: how many there are, if that is known already.
        seen: how many have been met.
    """

    total: int = 0
    seen: int = 0

    def take(self, num: int) -> int:
        """The number of the first of `num` further blocks."""
        self.seen += num
        return self.seen - num


@dataclass(frozen=True)
class Context:
    """The static surroundings of one forward pass.

    Attributes:
        axes: mesh axes inside `shard_map`; `MeshAxes()` on one device.
        rules: how parameters are laid out.
        precision: dtypes of the forward and of gradient sums.
        remat: what a block keeps for the backward pass.
        blocks: numbers the blocks, where the policy depends on it.
        capture_intermediates: if given, receives each block's output, in order.
        batch_stats: running statistics of batch norms by path; training writes the
            next ones. None where the model has no batch norm.
        key: dropout key of this forward, equal on all devices; None in evaluation.
        first_sample, sample_stride: the local samples are number first_sample,
            first_sample + sample_stride, ... of the global batch as sampled.
    """

    axes: MeshAxes = field(default_factory=MeshAxes)
    rules: ShardingRules = field(default_factory=ShardingRules)
    precision: Precision = field(default_factory=Precision)
    remat: Remat = field(default_factory=Remat)
    blocks: BlockCount | None = None
    capture_intermediates: list[Field] | None = None
    batch_stats: BatchStats | None = None
    key: Array | None = None
    first_sample: Array | int = 0
    sample_stride: int = 1

    @property
    def training(self) -> bool:
        """Whether this forward is one of training."""
        return self.key is not None

    def samples(self, batch: int) -> Array:
        """Number in the global batch of each of `batch` local samples, (batch,)."""
        return self.first_sample + self.sample_stride * jnp.arange(batch)

    def fold_in(self, data: Array | int) -> Context:
        """A context whose key is folded with `data`, so that call sites differ."""
        if self.key is None:
            return self
        return replace(self, key=jax.random.fold_in(self.key, data))

    def rows(self, size: int, dim: int = 1) -> Layout:
        """Block layout of `size` rows over the domain axis."""
        return block_layout(size, self.axes.num_domain, self.axes.domain, dim)

    def run(self, block: nnx.Module, *args: Any, **static: Any) -> Any:
        """`block(*args, context, **static)`, weights gathered and rematerialized."""
        graph, state = nnx.split(block)

        def body(state: Any, key: Array | None, *args: Any) -> Any:
            merged = self._merge(graph, state)
            return merged(*args, replace(self, key=key), **static)

        keep = self._num_kept(1) == 1
        return self._seen(self.remat.block(body, keep=keep)(state, self.key, *args))

    def scan(self, blocks: nnx.Module, carry: Any, num: int) -> Any:
        """Run `num` stacked blocks one after the other: carry = block(carry, context).

        They are one loop, which compiles once for all of them, wherever the backend
        runs loops with collectives correctly.

        Args:
            blocks: made by `nn.parameters.stack_blocks`.
            carry: goes in and comes out with the same structure and layout.
            num: number of blocks.
        """
        graph, state = nnx.split(blocks)
        leaves, tree = jax.tree.flatten(state)

        def body(carry: Any, inputs: Any) -> tuple[Any, None]:
            index, leaves = inputs
            block = self._merge(graph, jax.tree.unflatten(tree, leaves))
            return block(carry, self.fold_in(index)), None

        loops = self.axes.num_devices == 1 or loops_hold_collectives()
        gathered_again = num - self._num_kept(num)
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
                carry = jax.lax.scan(run, carry, inputs, unroll=unroll)[0]
        return self._seen(carry)

    def _seen(self, output: Any) -> Any:
        field = output[0] if isinstance(output, tuple) else output
        if self.capture_intermediates is not None and isinstance(field, Field):
            self.capture_intermediates.append(field)
        return output

    def _num_kept(self, num: int) -> int:
        """How many of the next `num` blocks gather nothing in the backward pass."""
        first = self.blocks.take(num) if self.blocks else 0
        if not self.rules.shard or self.axes.num_shard == 1:
            return num
        return self.remat.kept_of(first, num, self.blocks.total if self.blocks else 0)

    def _merge(self, graph: Any, state: Any) -> Callable[..., Any]:
        """The block with every parameter gathered and in the compute dtype."""

        def prepare(variable: nnx.Variable) -> nnx.Variable:
            param_spec = param_spec_of(variable).unstack()
            weight = variable[...]
            return variable.replace(
                gather(weight, param_spec, self.rules, self.axes, self.precision)
            )

        state = jax.tree.map(
            prepare, state, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
        )
        return nnx.merge(graph, state)
