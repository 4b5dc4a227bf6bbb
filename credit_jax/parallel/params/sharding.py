"""Rules that assign the dims of parameters to mesh axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec

from credit_jax.parallel.mesh.axes import DOMAIN, DP_SHARD, MeshAxes
from credit_jax.parallel.params.spec import (
    EXPERT_MLP,
    EXPERTS,
    LAYERS,
    MIN_SHARD_SIZE,
    TENSOR_DIMS,
    ParamSpec,
)


@dataclass(frozen=True)
class ShardingRules:
    """Assigns dims of parameters to mesh axes.

    Attributes:
        tensor: names of the dims sharded over tp; experts are always sharded over ep.
        shard: whether large parameters are sharded over dp_shard along another dim.
        min_shard_size: parameters with fewer elements (of a block, if stacked) are not
            sharded over dp_shard and domain, nor are parameters without a dim that is a
            multiple of the degree.
        over_domain: whether large parameters are also stored sharded over domain, which
            distributes their update.
    """

    tensor: tuple[str, ...] = TENSOR_DIMS
    shard: bool = True
    min_shard_size: int = MIN_SHARD_SIZE
    over_domain: bool = False

    def shard_dim(self, param_spec: ParamSpec, axes: MeshAxes) -> int | None:
        """Returns the dim sharded over dp_shard, or None.

        It is the first dim that is a multiple of the degree. What a device gathers and
        scatters is then contiguous, or nearly so: with another dim, XLA transposes the
        parameter, its gradient and the state of the optimizer, which it then copies.
        """
        if not (self.shard and axes.shard) or axes.num_shard == 1:
            return None
        return self._first(param_spec, param_spec.shape, axes.num_shard, axes)

    def domain_dim(self, param_spec: ParamSpec, axes: MeshAxes) -> int | None:
        """Returns the dim sharded over domain, or None.

        If it is that of dp_shard, each shard of domain is sharded over dp_shard: the
        devices of a domain axis, which have the fastest links, gather last.
        """
        if not (self.over_domain and axes.domain) or axes.num_domain == 1:
            return None
        lengths, shard = list(param_spec.shape), self.shard_dim(param_spec, axes)
        if shard is not None:
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

    @property
    def splits_experts_units(self) -> bool:
        """Whether the hidden units of an expert are sharded over tp."""
        return EXPERT_MLP in self.tensor

    def _axis(self, name: str | None, axes: MeshAxes) -> str | None:
        """Returns the axis for a dim name: tp, ep or None."""
        if name == EXPERTS:
            return axes.expert
        return axes.tensor if name in self.tensor else None


def split_axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns the mesh axes of one entry of a PartitionSpec."""
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


def split_degree(
    entry: str | tuple[str, ...] | None, degrees: Mapping[str, int]
) -> int:
    """Returns the number of shards of a dim with this entry of a PartitionSpec.

    >>> split_degree(("dp_shard", "domain"), {"dp_shard": 2, "domain": 4})
    8
    """
    return math.prod(degrees[axis] for axis in split_axes(entry))


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
