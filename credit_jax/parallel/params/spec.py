"""Parameters declared as data, and the rules that lay them out on a mesh.

A `ParamSpec` is made once, where the layer is written. Initialization, sharding,
spectral norm, checkpoints and the bridge read it.

Dim names:
    layers      blocks of a stage, stacked for `lax.scan`; never split
    embed       channels of a stage
    heads       attention heads; split over tp
    head_dim    channels of a head
    mlp         hidden units between a column and a row layer; split over tp
    conv_in, conv_out   channels of a convolution
    None        everything else (kernel height and width, q/k/v)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
from jax.sharding import PartitionSpec

from credit_jax.parallel.mesh.axes import DP_SHARD, TP, MeshAxes
from credit_jax.parallel.params.initializers import Initializer, constant

LAYERS = "layers"

ZEROS = constant(0.0)

# Dims that tensor parallelism may split.
TENSOR_DIMS = ("heads", "mlp")

# Parameters with fewer elements stay whole: gathering them costs more than it saves.
MIN_SHARD_SIZE = 1024


@dataclass(frozen=True)
class ParamSpec:
    """Description of a parameter, independent of the mesh.

    Attributes:
        shape: global shape.
        dims: a dim name (see the module's legend) or None for every dim.
        init: distribution of the initial values.
        matrix_out: dims that form the rows of the matrix whose largest singular value
            spectral norm divides by; None for what is no such matrix (biases, scales).
        dtype: storage dtype.
        keep_whole: never split over dp_shard, whatever its size.
        power_iterations: of spectral norm in a training forward, which uses the sigma
            after the first. 0: the matrix has u and v, which stay, and is not divided.
        frozen: not trained: no gradient, no optimizer state, no weight decay.
    """

    shape: tuple[int, ...]
    dims: tuple[str | None, ...]
    init: Initializer = ZEROS
    matrix_out: tuple[int, ...] | None = None
    dtype: Any = jnp.float32
    keep_whole: bool = False
    power_iterations: int = 1
    frozen: bool = False

    def __post_init__(self) -> None:
        assert len(self.shape) == len(self.dims), f"{self.shape} against {self.dims}"

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def is_stacked(self) -> bool:
        return bool(self.dims) and self.dims[0] == LAYERS

    @property
    def matrix_in(self) -> tuple[int, ...]:
        """Dims that form the columns of the matrix."""
        out = self.matrix_out or ()
        first = 1 if self.is_stacked else 0
        return tuple(d for d in range(first, len(self.shape)) if d not in out)

    @property
    def is_minor(self) -> bool:
        """Whether the parameter is never split over dp_shard.

        Biases and scales are minor, and matrices of few elements. What counts is one
        block, which is what gets gathered, however many are stacked.
        """
        block = self.unstack()
        return len(block.shape) <= 1 or block.size < MIN_SHARD_SIZE

    @property
    def is_small(self) -> bool:
        """Whether the parameter is packed with others into one vector.

        Minor parameters are, except those that tp splits and those that are frozen.
        """
        split = any(name in TENSOR_DIMS for name in self.dims)
        return self.is_minor and not split and not self.frozen

    def stack(self, num: int) -> ParamSpec:
        """The same parameter of `num` equal blocks on a leading dim."""
        out = self.matrix_out and tuple(d + 1 for d in self.matrix_out)
        return replace(
            self, shape=(num, *self.shape), dims=(LAYERS, *self.dims), matrix_out=out
        )

    def unstack(self) -> ParamSpec:
        """The parameter of one of the stacked blocks."""
        if not self.is_stacked:
            return self
        out = self.matrix_out and tuple(d - 1 for d in self.matrix_out)
        return replace(self, shape=self.shape[1:], dims=self.dims[1:], matrix_out=out)


@dataclass(frozen=True)
class ShardingRules:
    """Which mesh axis splits which dim.

    Attributes:
        tensor: dim names split over tp.
        shard: whether large parameters are split over dp_shard along one further dim.
        min_shard_size: parameters with fewer elements (of one block, where blocks are
            stacked) stay whole, and so do those with no dim that the degree divides.
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
            and not self._is_tensor(name, axes)
        ]
        return -max(fit)[1] if fit else None

    def spec(self, param_spec: ParamSpec, axes: MeshAxes) -> PartitionSpec:
        """PartitionSpec of the stored parameter."""
        names: list[str | None] = [
            TP if self._is_tensor(name, axes) else None for name in param_spec.dims
        ]
        dim = self.shard_dim(param_spec, axes)
        if dim is not None:
            names[dim] = DP_SHARD
        return PartitionSpec(*names)

    def specs(
        self, param_specs: Mapping[str, ParamSpec], axes: MeshAxes
    ) -> dict[str, PartitionSpec]:
        """PartitionSpec of every parameter, by path."""
        return {path: self.spec(d, axes) for path, d in param_specs.items()}

    def _is_tensor(self, name: str | None, axes: MeshAxes) -> bool:
        return axes.tensor is not None and name in self.tensor


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
