"""FSDP: parameters are stored sharded over dp_shard and gathered in each block.

They may also be sharded over the domain axis, whose devices would otherwise repeat the
same parameter update. Without dp_shard, the forward pass gathers them over domain once,
before its first block. With it, blocks gather over dp_shard and then over domain: what
crosses the links between nodes is shared by the devices of a domain axis.

The gather over dp_shard is inside of the block's `jax.checkpoint`, so the backward pass
gathers again; its transpose is the reduce-scatter of the gradient. Different compute
and reduce dtypes need a custom VJP: gather in the compute dtype, reduce-scatter in the
reduce dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

from credit_jax.ops.custom_vjp import linear
from credit_jax.ops.packed import slices
from credit_jax.ops.vma import pvary, varying_axes
from credit_jax.parallel.collectives import psum
from credit_jax.parallel.mesh.axes import MeshAxes
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.sharding import ShardingRules
from credit_jax.parallel.params.spec import ParamSpec

# The `checkpoint_name` of gathered parameters, for rematerialization policies.
GATHERED = "gathered_parameter"
# Smaller parameters of stacked blocks are gathered at once: a kernel for each block
# takes longer than the transpose.
_LARGE = 2**16

# (mesh axis, dim of the parameter), in the order in which they are gathered.
GatherOrder = tuple[tuple[str | None, int], ...]


def gathers_over_domain_in_blocks(axes: MeshAxes) -> bool:
    """Whether blocks gather over domain: `gather` does, not `gather_over_domain`."""
    return axes.num_shard > 1


def gather(
    weight: Array,
    param_spec: ParamSpec,
    rules: ShardingRules,
    axes: MeshAxes,
    precision: Precision,
) -> Array:
    """Gathers a parameter over dp_shard and then domain, in the compute dtype.

    Args:
        weight: local shard of a parameter of one block; without dp_shard, as returned
            by `gather_over_domain`.
        param_spec: spec of the parameter, not stacked.
        rules: sharding rules.
        axes: mesh axes.
        precision: dtypes of the gathered parameter and of the sum of its gradient.
    """
    dims = {axes.shard: rules.shard_dim(param_spec, axes)}
    if gathers_over_domain_in_blocks(axes):
        dims[axes.domain] = rules.domain_dim(param_spec, axes)
    steps = tuple((axis, dim) for axis, dim in dims.items() if dim is not None)
    if not steps:
        return precision.cast(weight)
    return checkpoint_name(_gather(weight, steps, precision), GATHERED)


def gather_over_domain(
    weights: Mapping[str, Array],
    param_specs: Mapping[str, ParamSpec],
    rules: ShardingRules,
    axes: MeshAxes,
    precision: Precision,
    *,
    num_unrolled: int = 0,
) -> dict[str, Array]:
    """Gathers the parameters sharded over domain, in the compute dtype.

    With dp_shard it gathers nothing, which is left to `gather`.

    Args:
        weights: local shards by path, after spectral norm.
        param_specs: specs of the parameters, by path.
        rules, axes, precision: as for `gather`.
        num_unrolled: stages of at most this many blocks are no loop. Their large
            parameters are gathered block by block, without transposing the stack.

    Returns:
        All parameters; those that are not sharded over domain are unchanged.
    """
    full = dict(weights)
    if gathers_over_domain_in_blocks(axes):
        return full
    for path, weight in weights.items():
        param_spec = param_specs[path]
        dim = rules.domain_dim(param_spec, axes)
        if dim is None:
            continue
        dim += weight.ndim - len(param_spec.shape)  # a dim of calls, or none
        is_large = param_spec.unstack().size > _LARGE
        if is_large and param_spec.is_stacked and len(weight) <= num_unrolled:
            blocks = slices(weight)
            steps = ((axes.domain, dim - 1),)
            full[path] = jnp.stack([_gather(b, steps, precision) for b in blocks])
        else:
            full[path] = _gather(weight, ((axes.domain, dim),), precision)
    return full


def _gather(weight: Array, steps: GatherOrder, precision: Precision) -> Array:
    """All-gathers in the compute dtype, reduce-scatters gradients in the reduce dtype.

    JAX's own transpose has one dtype.
    """
    stored = weight.dtype
    if stored == precision.compute == precision.reduce:
        return _all_gathered(weight, steps)

    def scattered(grad: Array) -> Array:
        shard = grad.astype(precision.reduce)
        # The transpose of the gathers, so in the opposite order.
        for axis, dim in reversed(steps):
            shard = lax.psum_scatter(shard, axis, scatter_dimension=dim, tiled=True)
        return shard.astype(stored)

    return linear(lambda x: _all_gathered(precision.cast(x), steps), scattered, weight)


def _all_gathered(weight: Array, steps: GatherOrder) -> Array:
    for axis, dim in steps:
        weight = lax.all_gather(weight, axis, axis=dim, tiled=True)
    return weight


def pvary_params(
    params: Mapping[str, Array], axes: Sequence[str], precision: Precision
) -> dict[str, Array]:
    """Casts parameters to varying over `axes`; the transpose sums their gradients.

    Args:
        params: local shards by path.
        axes: mesh axes over which samples and rows are sharded.
        precision: gives the reduce dtype, in which gradients are summed.
    """

    def varied(param: Array) -> Array:
        missing = tuple(name for name in axes if name not in varying_axes(param))
        if precision.reduce == param.dtype or not missing:
            return pvary(param, tuple(axes))

        def summed(grad: Array) -> Array:
            return psum(grad.astype(precision.reduce), missing).astype(grad.dtype)

        return linear(lambda x: pvary(x, missing), summed, param)

    return {path: varied(param) for path, param in params.items()}
