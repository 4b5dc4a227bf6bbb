"""Specs of parameters: shapes, initial values, names of dims.

A `ParamSpec` is declared once, in the layer. Initialization, sharding, spectral norm,
checkpoints and the bridge read it.

Dim names:
    layers      blocks of a stage, stacked for `lax.scan`; never sharded
    embed       channels of a stage
    heads       attention heads; sharded over tp
    head_dim    channels of a head
    mlp         hidden units between a column and a row layer; sharded over tp
    experts     experts of a layer; sharded over ep
    expert_mlp  hidden units of an expert; sharded over tp, unless etp is 1
    conv_in, conv_out   channels of a convolution
    None        all others (kernel height and width, q/k/v)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax.numpy as jnp


@dataclass(frozen=True)
class Initializer:
    """The distribution of a parameter's initial values."""

    kind: Literal["constant", "uniform", "normal"]  # scale; -scale to scale; std scale
    scale: float
    # Number of consecutive elements along the last dim that share a draw.
    repeat: int = 1


def constant(value: float) -> Initializer:
    """All elements equal to `value`."""
    return Initializer("constant", value)


def torch_uniform(fan_in: int) -> Initializer:
    """U(-1, 1) / sqrt(fan_in): torch's default for weights and biases."""
    return Initializer("uniform", 1.0 / math.sqrt(fan_in))


def xavier_normal(fan_in: int, fan_out: int) -> Initializer:
    """N(0, 2 / (fan_in + fan_out)), torch.nn.init.xavier_normal_."""
    return Initializer("normal", math.sqrt(2.0 / (fan_in + fan_out)))


def kaiming_uniform(fan: int) -> Initializer:
    """U(-1, 1) sqrt(6 / fan), torch.nn.init.kaiming_uniform_ for ReLU."""
    return Initializer("uniform", math.sqrt(6.0 / fan))


def icnr(fan_in: int, scale: int) -> Initializer:
    """ICNR initialization of an HWIO kernel before pixel shuffle."""
    # The scale**2 kernels of one output channel are copies of one drawn from
    # N(0, 2 / fan_in), which avoids checkerboard artifacts (Aitken et al. 2017,
    # https://arxiv.org/abs/1707.02937).
    return Initializer("normal", math.sqrt(2.0 / fan_in), repeat=scale**2)


LAYERS = "layers"

ZEROS = constant(0.0)

# Dim names of experts, and those that may be sharded over tp.
EXPERTS, EXPERT_MLP = "experts", "expert_mlp"
DENSE_TENSOR_DIMS = ("heads", "mlp")
TENSOR_DIMS = (*DENSE_TENSOR_DIMS, EXPERT_MLP)

# Parameters with fewer elements are not sharded: gathering costs more than it saves.
MIN_SHARD_SIZE = 1024


@dataclass(frozen=True)
class ParamSpec:
    """Description of a parameter, independent of the mesh."""

    shape: tuple[int, ...]  # global
    dims: tuple[str | None, ...]  # see the module's legend
    init: Initializer = ZEROS
    # Output dims of the matrix that spectral norm divides by its largest singular
    # value.
    matrix_out: tuple[int, ...] | None = None
    dtype: Any = jnp.float32
    keep_whole: bool = False  # never sharded over dp_shard and domain
    # Number of calls of the layer in a training forward pass. Spectral norm runs a
    # power iteration before each, so each call has its own sigma. With 0, u and v exist
    # but are constant, and the matrix is not divided.
    calls: int = 1
    frozen: bool = False  # no gradient, optimizer state or weight decay

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
        """Input dims of the matrix: all but the output dims and the stacked dim."""
        out = self.matrix_out or ()
        first = 1 if self.is_stacked else 0
        return tuple(d for d in range(first, len(self.shape)) if d not in out)

    @property
    def is_minor(self) -> bool:
        """Whether the parameter is too small to be sharded over dp_shard."""
        # If stacked, the size is that of one block, which is the unit of a gather.
        block = self.unstack()
        return len(block.shape) <= 1 or block.size < MIN_SHARD_SIZE

    @property
    def is_small(self) -> bool:
        """Whether `packing` puts the parameter into the vector of small parameters."""
        split = any(name in (*TENSOR_DIMS, EXPERTS) for name in self.dims)
        return self.is_minor and not split and not self.frozen

    def stack(self, num: int) -> ParamSpec:
        """Returns the spec of this parameter of `num` blocks, with a leading dim."""
        out = self.matrix_out and tuple(d + 1 for d in self.matrix_out)
        return replace(
            self, shape=(num, *self.shape), dims=(LAYERS, *self.dims), matrix_out=out
        )

    def unstack(self) -> ParamSpec:
        """Returns the spec of the parameter of one of the stacked blocks."""
        if not self.is_stacked:
            return self
        out = self.matrix_out and tuple(d - 1 for d in self.matrix_out)
        return replace(self, shape=self.shape[1:], dims=self.dims[1:], matrix_out=out)


def split_frozen(
    params: Mapping[str, Any], param_specs: Mapping[str, ParamSpec]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the (trainable, frozen) parts of a dict by path."""
    # The vector of packed parameters, which has no spec, is trainable.
    paths = [path for path in params if path in param_specs]
    frozen = {path: params[path] for path in paths if param_specs[path].frozen}
    return {path: x for path, x in params.items() if path not in frozen}, frozen


def trainable(
    params: Mapping[str, Any], param_specs: Mapping[str, ParamSpec]
) -> dict[str, Any]:
    """Returns the trainable part, which the optimizer updates; see `split_frozen`."""
    return split_frozen(params, param_specs)[0]
