"""Rules that assign the dims of parameters to mesh axes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jax.sharding import PartitionSpec

from credit_jax.parallel.mesh.axes import DP_SHARD, MeshAxes
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
        tensor: dim names split over tp; experts are always split over ep.
        shard: whether large parameters are split over dp_shard along another dim.
        min_shard_size: parameters with fewer elements (per block, if stacked) are not
            split over dp_shard, nor are those with no dim that the degree divides.
    """

    tensor: tuple[str, ...] = TENSOR_DIMS
    shard: bool = True
    min_shard_size: int = MIN_SHARD_SIZE

    def shard_dim(self, param_spec: ParamSpec, axes: MeshAxes) -> int | None:
        """The dim split over dp_shard: the longest that the degree divides, or None."""
        if not (self.shard and axes.shard) or axes.num_shard == 1:
            return None
        if param_spec.is_minor or param_spec.keep_whole:
            return None
        if param_spec.unstack().size < self.min_shard_size:
            return None
        fit = [
            (length, -dim)
            for dim, (length, name) in enumerate(
                zip(param_spec.shape, param_spec.dims, strict=True)
            )
            if length % axes.num_shard == 0
            and name != LAYERS
            and self._axis(name, axes) is None
        ]
        return -max(fit)[1] if fit else None

    def spec(self, param_spec: ParamSpec, axes: MeshAxes) -> PartitionSpec:
        """PartitionSpec of the stored parameter."""
        names = [self._axis(name, axes) for name in param_spec.dims]
        dim = self.shard_dim(param_spec, axes)
        if dim is not None:
            names[dim] = DP_SHARD
        return PartitionSpec(*names)

    def specs(
        self, param_specs: Mapping[str, ParamSpec], axes: MeshAxes
    ) -> dict[str, PartitionSpec]:
        """PartitionSpec of every parameter, by path."""
        return {path: self.spec(d, axes) for path, d in param_specs.items()}

    @property
    def splits_experts_units(self) -> bool:
        """Whether the hidden units of an expert are split over tp."""
        return EXPERT_MLP in self.tensor

    def _axis(self, name: str | None, axes: MeshAxes) -> str | None:
        """The axis that a dim is split over, dp_shard aside."""
        if name == EXPERTS:
            return axes.expert
        return axes.tensor if name in self.tensor else None


def matrix_specs(
    param_spec: ParamSpec, spec: PartitionSpec
) -> dict[str, PartitionSpec]:
    """Specs of a matrix's spectral norm state u (output dims) and v (input dims)."""
    names = tuple(spec) + (None,) * (len(param_spec.shape) - len(spec))
    lead = names[:1] if param_spec.is_stacked else ()
    out = param_spec.matrix_out or ()
    return {
        "u": PartitionSpec(*lead, *(names[d] for d in out)),
        "v": PartitionSpec(*lead, *(names[d] for d in param_spec.matrix_in)),
    }
