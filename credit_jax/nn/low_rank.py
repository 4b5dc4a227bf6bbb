"""Low-rank adapters: a frozen matrix plus the product of two trained ones.

LoRA, Hu et al. (2021), arXiv:2106.09685: W + scale * A B, of which A (in, rank) and B
(rank, out) are trained. Here the sum is made before spectral norm and before the
layers, on the stored shards: a layer sees one matrix, and spectral norm divides the
sum. B begins with zeros, so the first forecast is that of W.

Both have the dims of their matrix, one of length `rank` in place of the others: what is
sharded over tp is sharded alike. Over dp_shard and domain they are whole, as they are
small; a shard of W takes its part of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array

from credit_jax.ops.custom_vjp import pvary
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.mesh.device_mesh import DOMAIN, DP_SHARD
from credit_jax.parallel.params.fsdp import split_axes
from credit_jax.parallel.params.spec import ZEROS, Initializer, ParamSpec, torch_uniform

Weights = dict[str, Array]

# Names of the two matrices below the path of their own.
DOWN, UP = "lora_a", "lora_b"


@dataclass(frozen=True)
class LowRank:
    """Which matrices of a model have adapters."""

    rank: int  # columns of A and rows of B
    scale: float  # factor of their product, alpha / rank
    targets: frozenset[str]  # paths of the matrices
    # Initial values of B; with others than 0 the first forecast is not that of the
    # matrices, but depends on the adapters.
    up_init: Initializer = ZEROS

    def param_specs(self, specs: Mapping[str, ParamSpec]) -> dict[str, ParamSpec]:
        """Specs of the adapters of the targets among these parameters, by path."""
        added: dict[str, ParamSpec] = {}
        for path in sorted(self.targets):
            spec = specs[path]
            into = math.prod(spec.shape[d] for d in spec.matrix_in)
            inits = torch_uniform(into), self.up_init
            pairs = zip(self.adapters(path), _sides(spec), inits, strict=True)
            for adapter, dims, init in pairs:
                # Blocks come before the rank, then some dims of the matrix.
                order = (*((0,) if spec.is_stacked else ()), None, *dims)
                added[adapter] = ParamSpec(
                    tuple(self.rank if d is None else spec.shape[d] for d in order),
                    tuple(None if d is None else spec.dims[d] for d in order),
                    init,
                    keep_whole=True,
                )
        return added

    def adapters(self, path: str) -> tuple[str, str]:
        """Paths of A and B of a target."""
        return f"{path}/{DOWN}", f"{path}/{UP}"


def is_matrix(spec: ParamSpec) -> bool:
    """Whether a parameter is that of a dense layer or of a 1 x 1 convolution."""
    if spec.matrix_out is None:
        return False
    window = [n for n, name in zip(spec.shape, spec.dims, strict=True) if name is None]
    return "conv_in" not in spec.dims or all(n == 1 for n in window)


def merge(
    weights: Mapping[str, Array],
    low_rank: LowRank | None,
    param_specs: Mapping[str, ParamSpec],
    specs: Mapping[str, PartitionSpec],
) -> Weights:
    """Returns weights with the sums in place of the matrices, without adapters."""
    if low_rank is None:
        return dict(weights)
    sums = {path: x for path, x in weights.items() if not is_adapter(path)}
    for path in sorted(low_rank.targets):
        pair = (weights[adapter] for adapter in low_rank.adapters(path))
        spec = param_specs[path]
        down, up = (
            _shard(part, spec, side, specs[path])
            for part, side in zip(pair, _sides(spec), strict=True)
        )
        sums[path] = _sum(weights[path], down, up, spec, low_rank.scale)
    return sums


def merged(
    weights: Mapping[str, Any],
    low_rank: LowRank,
    param_specs: Mapping[str, ParamSpec],
) -> dict[str, Any]:
    """`merge` of whole arrays, outside of `shard_map`; keeps their shardings."""
    sums = {path: x for path, x in weights.items() if not is_adapter(path)}
    for path in low_rank.targets:
        matrix = weights[path]
        if isinstance(matrix, jax.ShapeDtypeStruct):
            continue
        pair = (weights[adapter] for adapter in low_rank.adapters(path))
        add = partial(_sum, spec=param_specs[path], scale=low_rank.scale)
        sharding = getattr(matrix, "sharding", None)
        sums[path] = jax.jit(add, out_shardings=sharding)(matrix, *pair)
    return sums


def is_adapter(path: str) -> bool:
    """Whether a path is that of an adapter."""
    return path.rpartition("/")[2] in (DOWN, UP)


def _sides(spec: ParamSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The input dims and the output dims of a matrix."""
    return spec.matrix_in, spec.matrix_out or ()


def _shard(
    part: Array, spec: ParamSpec, dims: tuple[int, ...], matrix_spec: PartitionSpec
) -> Array:
    """The part of an adapter for the local shard of its matrix."""
    # An adapter is split over tp as its matrix is, and whole along the axes of FSDP.
    names = (*matrix_spec, *(None,) * (len(spec.shape) - len(matrix_spec)))
    first = 2 if spec.is_stacked else 1
    for sharding, dim in enumerate(dims, first):
        axes = [axis for axis in split_axes(names[dim]) if axis in (DP_SHARD, DOMAIN)]
        if axes:
            length = part.shape[sharding] // math.prod(map(lax.axis_size, axes))
            start = axis_index(tuple(axes)) * length
            part = lax.dynamic_slice_in_dim(pvary(part, axes), start, length, sharding)
    return part


def _sum(matrix: Array, down: Array, up: Array, spec: ParamSpec, scale: float) -> Array:
    """W + scale * A B."""
    letters = "abcdefghijk"[: len(spec.shape)]
    lead = letters[:1] if spec.is_stacked else ""
    into, out = ("".join(letters[d] for d in dims) for dims in _sides(spec))
    pattern = f"{lead}r{into},{lead}r{out}->{letters}"
    product = jnp.einsum(pattern, down, up, precision=lax.Precision.HIGHEST)
    return matrix + scale * product.astype(matrix.dtype)
