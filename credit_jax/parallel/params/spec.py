"""Parameters declared as data.

A `ParamSpec` is made once, where the layer is written. Initialization, sharding,
spectral norm, checkpoints and the bridge read it.

Dim names:
    layers      blocks of a stage, stacked for `lax.scan`; never split
    embed       channels of a stage
    heads       attention heads; split over tp
    head_dim    channels of a head
    mlp         hidden units between a column and a row layer; split over tp
    experts     experts of a layer; split over ep
    expert_mlp  hidden units of an expert; split over tp, unless etp is 1
    conv_in, conv_out   channels of a convolution
    None        everything else (kernel height and width, q/k/v)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from credit_jax.parallel.params.initializers import Initializer, constant

LAYERS = "layers"

ZEROS = constant(0.0)

# Dims that tensor parallelism may split.
EXPERTS, EXPERT_MLP = "experts", "expert_mlp"
DENSE_TENSOR_DIMS = ("heads", "mlp")
TENSOR_DIMS = (*DENSE_TENSOR_DIMS, EXPERT_MLP)

# Parameters with fewer elements stay whole: gathering them costs more than it saves.
MIN_SHARD_SIZE = 1024


@dataclass(frozen=True)
class ParamSpec:
    """Description of a parameter, independent of the mesh.

    Attributes:
        shape: global shape.
        dims: a dim name (see the module's legend) or None for every dim.
        init: distribution of the initial values.
        matrix_out: output dims of the matrix that spectral norm divides by its largest
            singular value; None for parameters without it (biases, scales).
        dtype: storage dtype.
        keep_whole: never split over dp_shard, whatever its size.
        calls: of the layer in a training forward. Spectral norm iterates before each,
            so that each divides by another sigma. 0: u and v exist but are constant,
            and the matrix is not divided.
        frozen: not trained: no gradient, no optimizer state, no weight decay.
    """

    shape: tuple[int, ...]
    dims: tuple[str | None, ...]
    init: Initializer = ZEROS
    matrix_out: tuple[int, ...] | None = None
    dtype: Any = jnp.float32
    keep_whole: bool = False
    calls: int = 1
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

        Biases, scales and small matrices are minor. The size is that of one block,
        which is the unit of a gather.
        """
        block = self.unstack()
        return len(block.shape) <= 1 or block.size < MIN_SHARD_SIZE

    @property
    def is_small(self) -> bool:
        """Whether the parameter is packed with others into one vector.

        Minor parameters are, except those that tp or ep splits and those that are
        frozen.
        """
        split = any(name in (*TENSOR_DIMS, EXPERTS) for name in self.dims)
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
