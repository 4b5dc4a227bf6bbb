"""The context of a forward pass, which also runs the blocks of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from credit_jax.kernels import implementation
from credit_jax.nn.noise import Noise
from credit_jax.nn.parameters import Parameter, param_spec_of
from credit_jax.ops.packed import unstack
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
        capture_intermediates: if given, receives the output of every `run` and `scan`
            that returns a field, in order.
        float8_matrices: if given, receives (input, output) channels of each matrix that
            is multiplied in float8, as the forward pass is traced.
        key: dropout key of this forward pass, equal on all devices; None in evaluation.
        noise: source of random noise, in training and in evaluation.
        first_sample, sample_stride: the local samples have the global indices
            first_sample, first_sample + sample_stride, ...
        num_members: ensemble members per sample, consecutive along the batch dim:
            sample 0 member 0, sample 0 member 1, ...
        block: index of the block within the stack that `scan` runs.
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
        """Returns N(0, 1) noise at every sample and point of a field, float32.

        Args:
            name: name of the call site, unique within a block.
            field: gives samples, rows and columns.
            channels: number of channels of the noise; None for those of the field.

        Raises:
            ValueError: the context has no noise.
        """
        batch, _, columns, width = field.data.shape
        return self._noise(name).normal_field(
            name, self.samples(batch), field.layout, columns, channels or width
        )

    def normal_vector(
        self, name: str, batch: int, size: int
    ) -> Float[Array, "batch size"]:
        """Returns `size` draws of N(0, 1) for each of `batch` local samples, float32.

        Args:
            name: name of the call site, unique within a block.
            batch: number of local samples.
            size: number of draws of a sample.

        Raises:
            ValueError: the context has no noise.
        """
        return self._noise(name).normal_vector(name, self.samples(batch), size)

    def uniform_field(
        self, name: str, field: Field
    ) -> Float[Array, "batch rows lon channel"]:
        """Returns uniform noise in [0, 1) at every sample and point, float32.

        Args:
            name: name of the call site, unique within a block.
            field: gives samples, rows, columns and channels.

        Raises:
            ValueError: the context has no noise.
        """
        batch, _, columns, channels = field.data.shape
        return self._noise(name).uniform_field(
            name, self.samples(batch), field.layout, columns, channels
        )

    def uniform_integer(
        self, name: str, batch: int, bound: int
    ) -> Int[Array, " batch"]:
        """Returns a random integer in [0, bound) for each of `batch` local samples.

        Args:
            name: name of the call site, unique within a block.
            batch: number of local samples.
            bound: upper bound, at most 2**24.

        Raises:
            ValueError: the context has no noise.
        """
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

    def run(self, block: nnx.Module, *args: Any, **static: Any) -> Any:
        """Runs `block(*args, context, **static)` with gathered weights, rematerialized.

        Updates the running statistics of the batch norms below the block.
        """
        # `jax.checkpoint` takes functions of arrays. The module is put together inside
        # of it, so that the backward pass gathers the parameters again, too.
        graph, params, stats = nnx.split(block, Parameter, nnx.BatchStat)

        def body(
            params: Any, stats: Any, key: Any, noise: Any, *args: Any
        ) -> tuple[Any, Any]:
            merged: Any = nnx.merge(graph, self._gathered(params), stats)
            output = merged(*args, replace(self, key=key, noise=noise), **static)
            return output, nnx.state(merged, nnx.BatchStat)

        run = self.remat.block(body, keep=self._num_gathered(1) == 1)
        output, stats = run(params, stats, self.key, self.noise, *args)
        nnx.update(block, stats)
        return self._captured(output)

    def scan(
        self,
        blocks: nnx.Module,
        carry: Any,
        num: int,
        variants: Sequence[Mapping[str, Any]] = ({},),
    ) -> Any:
        """Runs `num` stacked blocks in sequence: carry = block(carry, context).

        Uses `lax.scan`. It is unrolled if a loop cannot contain collectives
        (`parallel.compiler.loops_hold_collectives`). On GPUs at most `unroll_blocks`
        blocks are run one by one instead. Updates the running statistics of the batch
        norms below the blocks.

        A block class may define `ready_of`, names of submodules, and a method `ready()`
        that depends only on their parameters. `ready()` is computed for all blocks at
        once before the scan, and each block receives its result as the keyword argument
        `ready`.

        Args:
            blocks: as returned by `nn.parameters.stack_blocks`.
            carry: input of the first block; blocks keep its structure and layout.
            num: number of blocks.
            variants: static keyword arguments; block i gets
                `variants[i % len(variants)]`.

        Returns:
            The output of the last block.
        """
        early = _parameters_of(getattr(blocks, "ready_of", ()))
        graph, apart, params, stats = nnx.split(blocks, early, Parameter, nnx.BatchStat)
        if implementation() == "gpu":
            # One kernel casts a whole stack; within the scan each block has its own.
            with jax.named_scope(PARAMETERS):
                params = self._cast(params)

        def make_ready(apart: Any) -> dict[str, Any]:
            block: Any = nnx.merge(graph, self._gathered(apart), params, stats)
            return {"ready": block.ready()}

        ready = {}
        if jax.tree.leaves(apart):
            keep = self.axes.num_shard == 1
            ready = self.remat.block(jax.vmap(make_ready), keep=keep)(apart)
        leaves, tree = jax.tree.flatten([params, stats, ready])

        def body(static: Mapping[str, Any], carry: Any, inputs: Any) -> tuple[Any, Any]:
            index, leaves = inputs
            params, stats, ready = jax.tree.unflatten(tree, leaves)
            block: Any = nnx.merge(graph, apart, self._gathered(params), stats)
            carry = block(carry, self._of_block(index), **static, **ready)
            return carry, nnx.state(block, nnx.BatchStat)

        one_by_one = implementation() == "gpu" and num <= self.unroll_blocks
        in_loop = not one_by_one and self._may_loop()
        # The blocks that keep what they gather are the last ones, with which the
        # backward pass begins.
        gathered_again = num - self._num_gathered(num)
        updates = []
        for part in (
            *_parts(0, gathered_again, len(variants), keep=False),
            *_parts(gathered_again, num, len(variants), keep=True),
        ):
            runs = [
                self.remat.block(
                    partial(body, variants[i % len(variants)]),
                    keep=part.keep,
                    in_loop=in_loop and part.turns > 1,
                )
                for i in range(part.first, part.first + part.group)
            ]
            if one_by_one:
                carry, updated = part.one_by_one(runs, carry, leaves)
            else:
                carry, updated = part.scan(runs, carry, leaves, unroll=not in_loop)
            updates.append(updated)
        nnx.update(blocks, _joined(updates))
        return self._captured(carry)

    def _may_loop(self) -> bool:
        return self.axes.num_devices == 1 or loops_hold_collectives()

    def _of_block(self, index: Array) -> Context:
        # Blocks of a stack are one traced function; the index alone tells their draws
        # of dropout and noise apart.
        return replace(self.fold_in(index), block=index)

    def _captured(self, output: Any) -> Any:
        if self.capture_intermediates is not None and isinstance(output, Field):
            self.capture_intermediates.append(output)
        return output

    def _num_gathered(self, num: int) -> int:
        """Returns how many of the next `num` blocks keep their gathered parameters."""
        # Counted first: blocks that gather nothing have numbers, too.
        first = self.blocks.add(num) if self.blocks else 0
        if not self.rules.shard or self.axes.num_shard == 1:
            return num
        return self.remat.num_saved(first, num, self.blocks.total if self.blocks else 0)

    def _cast(self, params: Any) -> Any:
        """Casts stacked parameters for which no block gathers anything, all at once."""

        def cast(variable: nnx.Variable) -> nnx.Variable:
            if self.axes.num_shard > 1 and not param_spec_of(variable).is_small:
                return variable
            return variable.replace(self.precision.cast(variable[...]))

        return jax.tree.map(cast, params, is_leaf=_is_variable)

    @jax.named_scope(PARAMETERS)
    def _gathered(self, params: Any) -> Any:
        """Gathers the parameters of one block over dp_shard, in the compute dtype."""

        def gathered(variable: nnx.Variable) -> nnx.Variable:
            param_spec = param_spec_of(variable).unstack()
            weight = variable[...]
            if weight.ndim > len(param_spec.shape):  # leading dim: calls of the layer
                param_spec = param_spec.stack(len(weight))
            return variable.replace(
                gather(weight, param_spec, self.rules, self.axes, self.precision)
            )

        return jax.tree.map(gathered, params, is_leaf=_is_variable)


def _is_variable(node: Any) -> bool:
    return isinstance(node, nnx.Variable)


def _parameters_of(modules: Sequence[str]) -> Callable[[Any, Any], bool]:
    """Returns an `nnx` filter for the parameters below modules with these names."""

    def below(path: Any, value: Any) -> bool:
        return isinstance(value, Parameter) and any(name in modules for name in path)

    return below


# A block as a function of the carry and (its index, its slices of stacked arrays);
# returns the carry and its statistics.
_Run = Callable[[Any, tuple[Array, list[Array]]], tuple[Any, Any]]


@dataclass(frozen=True)
class _Part:
    """Consecutive blocks, `group` of which are different functions.

    Attributes:
        first: index of the first block.
        turns: number of groups.
        group: number of blocks of a group.
        keep: whether the blocks save their gathered parameters.
    """

    first: int
    turns: int
    group: int
    keep: bool

    def scan(
        self,
        runs: Sequence[_Run],
        carry: Any,
        stacked: Sequence[Array],
        *,
        unroll: bool,
    ) -> tuple[Any, Any]:
        """Runs the blocks by `lax.scan`, a group in each iteration.

        Args:
            runs: the blocks of a group.
            carry: input of the first block.
            stacked: arrays with a leading dim of blocks, also those of other parts.
            unroll: whether the compiled program has no loop.

        Returns:
            The output of the last block, and the stacked statistics.
        """

        def turn(carry: Any, inputs: tuple[Array, list[Array]]) -> tuple[Any, Any]:
            if self.group == 1:
                return runs[0](carry, inputs)
            stats = []
            for i, run in enumerate(runs):
                carry, updated = run(carry, jax.tree.map(lambda x, i=i: x[i], inputs))
                stats.append(updated)
            return carry, _stacked(stats)

        inputs = jax.tree.map(self._grouped, self._inputs(stacked))
        carry, stats = jax.lax.scan(
            turn, carry, inputs, unroll=self.turns if unroll else 1
        )
        if self.group == 1:
            return carry, stats
        # (turns, group, ...) to (blocks, ...), in the order of the blocks.
        return carry, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stats)

    def one_by_one(
        self, runs: Sequence[_Run], carry: Any, stacked: Sequence[Array]
    ) -> tuple[Any, Any]:
        """`scan` without a loop."""
        # `jit` traces a function once, however many blocks call it.
        traced_once = [jax.jit(run) for run in runs]
        stats = []
        indices, slices = self._inputs(stacked)
        for i, (index, *leaves) in enumerate(unstack([indices, *slices])):
            carry, updated = traced_once[i % self.group](carry, (index, leaves))
            stats.append(updated)
        return carry, _stacked(stats)

    def _inputs(self, stacked: Sequence[Array]) -> tuple[Array, list[Array]]:
        """Returns the indices of these blocks, and their slices of stacked arrays."""
        stop = self.first + self.turns * self.group
        slices = [leaf[self.first : stop] for leaf in stacked]
        return jnp.arange(self.first, stop), slices

    def _grouped(self, stacked: Array) -> Array:
        """Splits the dim of blocks into (turns, group) if there are groups."""
        if self.group == 1:
            return stacked
        return stacked.reshape(self.turns, self.group, *stacked.shape[1:])


def _parts(first: int, stop: int, group: int, *, keep: bool) -> Iterator[_Part]:
    """Yields the full groups of blocks from `first` to `stop`, then the remainder."""
    turns = (stop - first) // group
    if turns:
        yield _Part(first, turns, group, keep)
    rest = first + turns * group
    if rest < stop:
        yield _Part(rest, 1, stop - rest, keep)


def _stacked(trees: Sequence[Any]) -> Any:
    """Stacks trees of arrays along a new leading dim."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _joined(parts: Sequence[Any]) -> Any:
    """Concatenates trees of stacked arrays along the stacked dim."""
    if len(parts) == 1:
        return parts[0]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
