"""Runs the blocks of a model, single ones and stacks of equal ones.

A block's parameters are gathered over dp_shard when it runs, and cast to the compute
dtype; the backward pass gathers and computes again what the rematerialization policy
does not save.

A stack is one module whose parameters have a leading dim of blocks. It runs in one of
three ways, which give the same numbers:

    a loop (`lax.scan`)   one compiled block, however many there are
    an unrolled scan      on meshes of CPU devices, whose loops cannot hold collectives
                          (`parallel.compiler`)
    one by one            on GPUs up to `unroll_blocks` blocks: there a loop copies what
                          each block reads from the stack, and what it saves

Two things cut a stack into parts, each a scan of its own. Blocks that save what they
gather are the last ones, with which the backward pass begins. And blocks may alternate
between variants, as plain and shifted windows do: an iteration of the scan then runs
one block of each, and what is left over at the end of a part is a shorter group. Seven
blocks of two variants A and B, of which the last three save what they gather:

    block       0   1   2   3     4   5     6
    parts     [ A   B | A   B ] [ A   B ] [ A ]     | separates iterations
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from credit_jax.kernels import implementation
from credit_jax.nn.context import Context, Noise
from credit_jax.nn.parameters import Parameter, param_spec_of
from credit_jax.ops.packed import unstack
from credit_jax.parallel.compiler import PARAMETERS, loops_hold_collectives
from credit_jax.parallel.params.fsdp import gather
from credit_jax.parallel.rows.layout import Field

T = TypeVar("T")
# What a stack of blocks passes from one to the next: a field, or a tree of arrays.
Carry = TypeVar("Carry")
# A tree of `nnx` variables, such as the parameters of a block.
Variables: TypeAlias = Any
# A block as a function of the carry and (its index, its slices of stacked arrays);
# returns the carry and its statistics.
_Inputs: TypeAlias = tuple[Array, list[Array]]
_Run: TypeAlias = Callable[[Any, _Inputs], tuple[Any, Variables]]


def run_block(context: Context, block: nnx.Module, *args: Any, **static: Any) -> Any:
    """Runs `block(*args, context, **static)` with gathered weights, rematerialized."""
    # `jax.checkpoint` takes functions of arrays. The module is put together inside
    # of it, so that the backward pass gathers the parameters again, too.
    graph, params, stats = nnx.split(block, Parameter, nnx.BatchStat)

    def body(
        params: Variables,
        stats: Variables,
        key: Array | None,
        noise: Noise | None,
        *args: Any,
    ) -> tuple[Any, Variables]:
        merged: Any = nnx.merge(graph, _gathered(context, params), stats)
        output = merged(*args, replace(context, key=key, noise=noise), **static)
        return output, nnx.state(merged, nnx.BatchStat)

    run = context.remat.block(body, keep=_num_gathered(context, 1) == 1)
    output, stats = run(params, stats, context.key, context.noise, *args)
    nnx.update(block, stats)
    return _captured(context, output)


def scan_blocks(
    context: Context,
    blocks: nnx.Module,  # of `stack_blocks`
    carry: Carry,
    num: int,
    variants: Sequence[Mapping[str, Any]] = ({},),  # static arguments of block i % len
) -> Carry:
    """Runs `num` stacked blocks in sequence: carry = block(carry, context)."""
    # If blocks have a method `ready()`, a function of the parameters below the
    # submodules `ready_of` alone, it is computed for all blocks at once before the
    # scan, and each gets its result as the keyword argument `ready`.
    early: Sequence[str] = getattr(blocks, "ready_of", ())
    graph, apart, params, stats = nnx.split(
        blocks,
        lambda path, value: (
            isinstance(value, Parameter) and any(name in early for name in path)
        ),
        Parameter,
        nnx.BatchStat,
    )
    on_gpu = implementation() == "gpu"
    if on_gpu:
        # One kernel casts a whole stack; within the scan each block has its own.
        def cast(variable: nnx.Variable) -> nnx.Variable:
            # What is gathered over dp_shard, a block casts before that.
            if context.axes.num_shard > 1 and not param_spec_of(variable).is_small:
                return variable
            return variable.replace(context.precision.cast(variable[...]))

        with jax.named_scope(PARAMETERS):
            params = jax.tree.map(
                cast, params, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
            )

    def make_ready(apart: Variables) -> dict[str, Any]:
        # The other arrays only complete the module: `ready` reads none of them.
        block: Any = nnx.merge(graph, _gathered(context, apart), params, stats)
        return {"ready": block.ready()}

    # Small operations are then few: with biases of attention computed so, a WXFormer
    # step of 0.25 degrees on 8 shards launched 4,209 kernels instead of 6,000.
    ready = {}
    if jax.tree.leaves(apart):
        keep = context.axes.num_shard == 1
        ready = context.remat.block(jax.vmap(make_ready), keep=keep)(apart)
    # The scan slices leaves; their tree is a constant of the traced function.
    leaves, tree = jax.tree.flatten([params, stats, ready])

    def body(
        static: Mapping[str, Any], carry: Any, inputs: _Inputs
    ) -> tuple[Any, Variables]:
        index, leaves = inputs
        params, stats, ready = jax.tree.unflatten(tree, leaves)
        # `apart` is neither sliced nor gathered: the block takes `ready` instead.
        block: Any = nnx.merge(graph, apart, _gathered(context, params), stats)
        # Blocks of a stage are one traced function; the index alone tells their draws
        # of dropout and noise apart.
        indexed = replace(context.fold_in(index), block=index)
        carry = block(carry, indexed, **static, **ready)
        return carry, nnx.state(block, nnx.BatchStat)

    one_by_one = on_gpu and num <= context.unroll_blocks
    may_loop = context.axes.num_devices == 1 or loops_hold_collectives()
    in_loop = may_loop and not one_by_one
    gathered_again = num - _num_gathered(context, num)
    updates = []
    for part in (
        *_parts(0, gathered_again, len(variants), keep=False),
        *_parts(gathered_again, num, len(variants), keep=True),
    ):
        runs = [
            context.remat.block(
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
    if len(updates) > 1:
        updates = [jax.tree.map(lambda *parts: jnp.concatenate(parts), *updates)]
    nnx.update(blocks, *updates)
    return _captured(context, carry)


def _captured(context: Context, output: T) -> T:
    if context.capture_intermediates is not None and isinstance(output, Field):
        context.capture_intermediates.append(output)
    return output


def _num_gathered(context: Context, num: int) -> int:
    """Returns how many of the next `num` blocks keep their gathered parameters."""
    # Counted first: blocks that gather nothing have numbers, too.
    first = context.blocks.add(num) if context.blocks else 0
    if not context.rules.shard or context.axes.num_shard == 1:
        return num
    return context.remat.num_saved(
        first, num, context.blocks.total if context.blocks else 0
    )


@jax.named_scope(PARAMETERS)
def _gathered(context: Context, params: Variables) -> Variables:
    """Gathers the parameters of one block over dp_shard, in the compute dtype."""

    def gathered(variable: nnx.Variable) -> nnx.Variable:
        param_spec = param_spec_of(variable).unstack()
        weight = variable[...]
        if weight.ndim > len(param_spec.shape):  # leading dim: calls of the layer
            param_spec = param_spec.stack(len(weight))
        return variable.replace(
            gather(weight, param_spec, context.rules, context.axes, context.precision)
        )

    return jax.tree.map(
        gathered, params, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )


@dataclass(frozen=True)
class _Part:
    """Consecutive blocks, `group` of which are different functions."""

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
    ) -> tuple[Any, Variables]:
        """Runs the blocks by `lax.scan`, a group in each iteration."""

        def turn(carry: Any, inputs: _Inputs) -> tuple[Any, Variables]:
            if self.group == 1:
                return runs[0](carry, inputs)
            stats = []
            for i, run in enumerate(runs):
                carry, updated = run(carry, jax.tree.map(lambda x, i=i: x[i], inputs))
                stats.append(updated)
            return carry, _stacked(stats)

        def grouped(leaf: Array) -> Array:
            if self.group == 1:
                return leaf
            return leaf.reshape(self.turns, self.group, *leaf.shape[1:])

        inputs = jax.tree.map(grouped, self._inputs(stacked))
        carry, stats = jax.lax.scan(
            turn, carry, inputs, unroll=self.turns if unroll else 1
        )
        if self.group == 1:
            return carry, stats
        # (turns, group, ...) to (blocks, ...), in the order of the blocks.
        return carry, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), stats)

    def one_by_one(
        self, runs: Sequence[_Run], carry: Any, stacked: Sequence[Array]
    ) -> tuple[Any, Variables]:
        """`scan` without a loop."""
        # `jit` traces a function once, however many blocks call it.
        traced_once = [jax.jit(run) for run in runs]
        stats = []
        indices, slices = self._inputs(stacked)
        for i, (index, *leaves) in enumerate(unstack([indices, *slices])):
            carry, updated = traced_once[i % self.group](carry, (index, leaves))
            stats.append(updated)
        return carry, _stacked(stats)

    def _inputs(self, stacked: Sequence[Array]) -> _Inputs:
        """Returns the indices of these blocks, and their slices of stacked arrays."""
        stop = self.first + self.turns * self.group
        slices = [leaf[self.first : stop] for leaf in stacked]
        return jnp.arange(self.first, stop), slices


def _parts(first: int, stop: int, group: int, *, keep: bool) -> Iterator[_Part]:
    """Yields the full groups of blocks from `first` to `stop`, then the remainder."""
    turns = (stop - first) // group
    if turns:
        yield _Part(first, turns, group, keep)
    remainder = first + turns * group
    if remainder < stop:
        yield _Part(remainder, 1, stop - remainder, keep)


def _stacked(trees: Sequence[Variables]) -> Variables:
    """Stacks trees of arrays along a new leading dim."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
