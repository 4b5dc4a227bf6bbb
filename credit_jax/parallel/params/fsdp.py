"""Sharding of parameters: rules that assign dims to mesh axes, and FSDP.

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
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec
from jaxtyping import Array

from credit_jax.ops.custom_vjp import linear, pvary, varying_axes
from credit_jax.ops.packed import slices
from credit_jax.parallel.collectives import psum
from credit_jax.parallel.mesh.device_mesh import DOMAIN, DP_SHARD, MeshAxes
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.params.spec import (
    EXPERTS,
    LAYERS,
    MIN_SHARD_SIZE,
    TENSOR_DIMS,
    ParamSpec,
)


@dataclass(frozen=True)
class ShardingRules:
    """Assigns dims of parameters to mesh axes."""

    tensor: tuple[str, ...] = TENSOR_DIMS  # dims over tp; experts are always over ep
    shard: bool = True  # large parameters over dp_shard, along another dim
    # Parameters with fewer elements (of a block, if stacked) are not sharded over
    # dp_shard and domain, nor are those without a dim that is a multiple of the degree.
    min_shard_size: int = MIN_SHARD_SIZE
    # Large parameters are also stored sharded over domain: it distributes their update.
    over_domain: bool = False

    def shard_dim(self, param_spec: ParamSpec, axes: MeshAxes) -> int | None:
        """Returns the dim sharded over dp_shard, or None."""
        if not (self.shard and axes.shard) or axes.num_shard == 1:
            return None
        # The first dim that is a multiple of the degree: what a device gathers and
        # scatters is contiguous, or nearly so. With another dim, XLA transposes the
        # parameter, its gradient and the state of the optimizer, which it then copies.
        return self._first(param_spec, param_spec.shape, axes.num_shard, axes)

    def domain_dim(self, param_spec: ParamSpec, axes: MeshAxes) -> int | None:
        """Returns the dim sharded over domain, or None."""
        if not (self.over_domain and axes.domain) or axes.num_domain == 1:
            return None
        lengths, shard = list(param_spec.shape), self.shard_dim(param_spec, axes)
        if shard is not None:
            # Each shard of domain is sharded over dp_shard: the devices of a domain
            # axis, which have the fastest links, gather last.
            lengths[shard] //= axes.num_shard
        return self._first(param_spec, lengths, axes.num_domain, axes)

    def _first(
        self,
        param_spec: ParamSpec,
        lengths: Sequence[int],
        degree: int,
        axes: MeshAxes,
    ) -> int | None:
        """Returns the first dim that a degree divides, for large parameters only."""
        if param_spec.is_minor or param_spec.keep_whole:
            return None
        if param_spec.unstack().size < self.min_shard_size:
            return None
        for dim, (length, name) in enumerate(
            zip(lengths, param_spec.dims, strict=True)
        ):
            if name != LAYERS and length % degree == 0 and not self._axis(name, axes):
                return dim
        return None

    def spec(self, param_spec: ParamSpec, axes: MeshAxes) -> PartitionSpec:
        """Returns the PartitionSpec of a stored parameter."""
        names: list[Any] = [self._axis(name, axes) for name in param_spec.dims]
        shard, domain = (
            dim(param_spec, axes) for dim in (self.shard_dim, self.domain_dim)
        )
        if shard is not None:
            names[shard] = DP_SHARD
        if domain is not None:
            names[domain] = (DOMAIN, DP_SHARD) if domain == shard else DOMAIN
        return PartitionSpec(*names)

    def specs(
        self, param_specs: Mapping[str, ParamSpec], axes: MeshAxes
    ) -> dict[str, PartitionSpec]:
        """Returns the PartitionSpec of every parameter, by path."""
        return {path: self.spec(d, axes) for path, d in param_specs.items()}

    def _axis(self, name: str | None, axes: MeshAxes) -> str | None:
        """Returns the axis for a dim name: tp, ep or None."""
        if name == EXPERTS:
            return axes.expert
        return axes.tensor if name in self.tensor else None


def split_axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns the mesh axes of one entry of a PartitionSpec."""
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


def matrix_specs(
    param_spec: ParamSpec, spec: PartitionSpec
) -> dict[str, PartitionSpec]:
    """Returns the PartitionSpecs of u (output dims) and v (input dims) of a matrix."""
    names = tuple(spec) + (None,) * (len(param_spec.shape) - len(spec))
    lead = names[:1] if param_spec.is_stacked else ()
    out = param_spec.matrix_out or ()
    return {
        "u": PartitionSpec(*lead, *(names[d] for d in out)),
        "v": PartitionSpec(*lead, *(names[d] for d in param_spec.matrix_in)),
    }


# The `checkpoint_name` of gathered parameters, for rematerialization policies.
GATHERED = "gathered_parameter"
# Smaller parameters of stacked blocks are gathered at once: a kernel for each block
# takes longer than the transpose.
_LARGE = 2**16

# (mesh axis, dim of the parameter), in the order in which they are gathered.
GatherOrder = tuple[tuple[str | None, int], ...]


def gather(
    weight: Array,
    param_spec: ParamSpec,
    rules: ShardingRules,
    axes: MeshAxes,
    precision: Precision,
) -> Array:
    """Gathers a parameter over dp_shard and then domain, in the compute dtype."""
    dims = {axes.shard: rules.shard_dim(param_spec, axes)}
    if axes.num_shard > 1:
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
    """Gathers parameters sharded over domain alone, in the compute dtype."""
    full = dict(weights)
    if axes.num_shard > 1:
        # `gather` does it.
        return full
    for path, weight in weights.items():
        param_spec = param_specs[path]
        dim = rules.domain_dim(param_spec, axes)
        if dim is None:
            continue
        dim += weight.ndim - len(param_spec.shape)  # a dim of calls, or none
        # Large parameters of unrolled stages are gathered block by block, without
        # transposing the stack.
        is_large = param_spec.unstack().size > _LARGE
        if is_large and param_spec.is_stacked and len(weight) <= num_unrolled:
            blocks = slices(weight)
            steps = ((axes.domain, dim - 1),)
            full[path] = jnp.stack([_gather(b, steps, precision) for b in blocks])
        else:
            full[path] = _gather(weight, ((axes.domain, dim),), precision)
    return full


def _gather(weight: Array, steps: GatherOrder, precision: Precision) -> Array:
    """All-gathers in the compute dtype, reduce-scatters in the reduce dtype."""
    stored = weight.dtype
    if stored == precision.compute == precision.reduce:
        return _all_gathered(weight, steps)

    # JAX's own transpose has one dtype.
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
    """Casts parameters to varying over `axes`; the transpose sums their gradients."""

    def varied(param: Array) -> Array:
        missing = tuple(name for name in axes if name not in varying_axes(param))
        if precision.reduce == param.dtype or not missing:
            return pvary(param, tuple(axes))

        def summed(grad: Array) -> Array:
            return psum(grad.astype(precision.reduce), missing).astype(grad.dtype)

        return linear(lambda x: pvary(x, missing), summed, param)

    return {path: varied(param) for path, param in params.items()}
