"""FSDP: parameters are stored sharded over dp_shard and gathered in each block.

They may also be sharded over the domain axis, whose devices would otherwise repeat the
same parameter update. The forward pass gathers them over domain once, before its first
block.

The gather over dp_shard is inside of the block's `jax.checkpoint`, so the backward pass
gathers again; its transpose is the reduce-scatter of the gradient. Different compute
and reduce dtypes need a custom VJP: gather in the compute dtype, reduce-scatter in the
reduce dtype.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

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


def gather(
    weight: Array,
    param_spec: ParamSpec,
    rules: ShardingRules,
    axes: MeshAxes,
    precision: Precision,
) -> Array:
    """Gathers a parameter over dp_shard, in the compute dtype.

    Args:
        weight: local shard of a parameter of one block.
        param_spec: spec of the parameter, not stacked.
        rules: sharding rules.
        axes: mesh axes.
        precision: dtypes of the gathered parameter and of the sum of its gradient.
    """
    dim = rules.shard_dim(param_spec, axes)
    if dim is None:
        return precision.cast(weight)
    return checkpoint_name(_gather(weight, axes.shard, dim, precision), GATHERED)


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

    Args:
        weights: local shards by path, after spectral norm.
        param_specs: specs of the parameters, by path.
        rules, axes, precision: as for `gather`.
        num_unrolled: stages of at most this many blocks are no loop. Their large
            parameters are gathered block by block, without transposing the stack.

    Returns:
        All parameters; those that are not sharded over domain are unchanged.
    """
    whole = dict(weights)
    for path, weight in weights.items():
        param_spec = param_specs[path]
        dim = rules.domain_dim(param_spec, axes)
        if dim is None:
            continue
        dim += weight.ndim - len(param_spec.shape)  # a dim of calls, or none
        is_large = param_spec.unstack().size > _LARGE
        if is_large and param_spec.is_stacked and len(weight) <= num_unrolled:
            blocks = (part[0] for part in lax.split(weight, [1] * len(weight)))
            parts = [_gather(b, axes.domain, dim - 1, precision) for b in blocks]
            whole[path] = jnp.stack(parts)
        else:
            whole[path] = _gather(weight, axes.domain, dim, precision)
    return whole


def _gather(weight: Array, axis: str | None, dim: int, precision: Precision) -> Array:
    if weight.dtype == precision.compute == precision.reduce:
        return lax.all_gather(weight, axis, axis=dim, tiled=True)
    return _gather_as(weight, axis, dim, precision)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather_as(
    weight: Array, axis: str | None, dim: int, precision: Precision
) -> Array:
    """All-gathers in the compute dtype, reduce-scatters gradients in the reduce dtype.

    It needs a custom VJP, as the two dtypes differ.
    """
    return lax.all_gather(precision.cast(weight), axis, axis=dim, tiled=True)


def _gather_as_forward(
    weight: Array, axis: str | None, dim: int, precision: Precision
) -> tuple[Array, Any]:
    return _gather_as(weight, axis, dim, precision), weight.dtype.type(0)


def _gather_as_backward(
    axis: str | None, dim: int, precision: Precision, stored: Any, grad: Array
) -> tuple[Array]:
    wide = grad.astype(precision.reduce)
    shard = lax.psum_scatter(wide, axis, scatter_dimension=dim, tiled=True)
    return (shard.astype(stored.dtype),)


_gather_as.defvjp(_gather_as_forward, _gather_as_backward)


def pvary_params(
    params: Mapping[str, Array], axes: Sequence[str], precision: Precision
) -> dict[str, Array]:
    """Casts parameters to varying over `axes`; the transpose sums their gradients.

    Args:
        params: local shards by path.
        axes: mesh axes over which samples and rows are sharded.
        precision: gives the reduce dtype, in which gradients are summed.
    """
    return {path: _pvary_param(p, tuple(axes), precision) for path, p in params.items()}


def _pvary_param(param: Array, axes: tuple[str, ...], precision: Precision) -> Array:
    missing = tuple(name for name in axes if name not in varying_axes(param))
    if precision.reduce == param.dtype or not missing:
        return pvary(param, axes)
    return _pvary_as(param, missing, precision)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _pvary_as(param: Array, axes: tuple[str, ...], precision: Precision) -> Array:
    return pvary(param, axes)


def _pvary_as_forward(
    param: Array, axes: tuple[str, ...], precision: Precision
) -> tuple[Array, None]:
    return pvary(param, axes), None


def _pvary_as_backward(
    axes: tuple[str, ...], precision: Precision, _: None, grad: Array
) -> tuple[Array]:
    return (psum(grad.astype(precision.reduce), axes).astype(grad.dtype),)


_pvary_as.defvjp(_pvary_as_forward, _pvary_as_backward)
