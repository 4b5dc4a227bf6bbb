"""A dense layer of few channels, with bias and residual in one kernel.

The gradients of kernel and bias are one kernel, too. Products with more output tiles
are bound by the L2 cache, where libraries have larger tiles.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.kernels.gpu.call import (
    call_kernel,
    cdiv,
    load,
    program_id,
    store,
)
from credit_jax.kernels.gpu.dots import dot
from credit_jax.kernels.gpu.groups import TILE, num_groups
from credit_jax.ops.custom_vjp import custom_vjp
from credit_jax.ops.vma import match_vma

# Sides of a tile of the result, and the step along the contracted dim.
_ROWS, _COLUMNS, _DEPTH = TILE, TILE, 64
_STAGES = 3
# Most channels of the result for which the kernels are faster than XLA's: see
# docs/gpu_kernels.md.
MOST_CHANNELS = 2 * TILE


class _Place:
    """Rows and columns of the tile of this program; the column varies fastest.

    All tiles are along the first dim of the grid, since CUDA has at most 65,535
    programs along the others.
    """

    def __init__(self, shape: Sequence[int]) -> None:
        columns = cdiv(shape[1], _COLUMNS)
        column, row = program_id(0) % columns, program_id(0) // columns
        self.block = row
        self.row = row * _ROWS + lax.iota(jnp.int32, _ROWS)
        self.column = column * _COLUMNS + lax.iota(jnp.int32, _COLUMNS)
        self.row_inside = self.row < shape[0]
        self.column_inside = self.column < shape[1]

    def load(self, ref: Any) -> Array:
        """Loads the tile of an array."""
        return _load(ref, self.row, self.column, self.row_inside, self.column_inside)

    def vector(self, ref: Any) -> Array:
        """Loads the columns of the tile from a vector."""
        return load(ref.at[self.column], mask=self.column_inside, other=0.0)

    def store(self, ref: Any, values: Array, *lead: Array) -> None:
        """Stores the tile at leading indices `lead` of the array."""
        mask = self.row_inside[:, None] & self.column_inside[None, :]
        where = ref.at[*lead, self.row[:, None], self.column[None, :]]
        store(where, values.astype(ref.dtype), mask=mask)


def project(
    x: Float[Array, "*batch channel"],
    skip: Float[Array, "*batch out"],
    kernel: Float[Array, "channel out"],
    bias: Float[Array, " out"],
    *,
    interpret: bool = False,
) -> Float[Array, "*batch out"]:
    """Returns `skip + x @ kernel + bias`.

    Args:
        x: (batch..., channel).
        skip: (batch..., out).
        kernel: (channel, out).
        bias: (out,).
        interpret: whether to run the kernel as XLA operations, on any device.
    """
    flat = x.reshape(-1, x.shape[-1]), skip.reshape(-1, skip.shape[-1])
    return jnp.reshape(_project(*match_vma(*flat, kernel, bias), interpret), skip.shape)


@partial(custom_vjp, nondiff_argnums=(4,))
def _project(
    x: Array, skip: Array, kernel: Array, bias: Array, interpret: bool
) -> Array:
    return linear(x, kernel, bias, skip, interpret=interpret)


def _project_forward(
    x: Array, skip: Array, kernel: Array, bias: Array, interpret: bool
) -> tuple[Array, tuple[Array, ...]]:
    return _project(x, skip, kernel, bias, interpret), (x, kernel, bias)


def _project_backward(
    interpret: bool, saved: tuple[Array, ...], cotangent: Array
) -> tuple[Array, ...]:
    x, kernel, bias = saved
    by_kernel, by_bias = layer_gradients(
        x, cotangent, dtype=kernel.dtype, interpret=interpret
    )
    return (
        cotangent @ kernel.T,
        cotangent,
        by_kernel,
        by_bias.astype(bias.dtype),
    )


def _project_tangent(
    interpret: bool, saved: tuple[Array, ...], *tangents: Array
) -> Array:
    del interpret
    x, kernel, _ = saved
    by_x, by_skip, by_kernel, by_bias = tangents
    wide = jnp.promote_types(x.dtype, jnp.float32)
    product = partial(jnp.matmul, preferred_element_type=wide)
    total = product(by_x, kernel) + product(x, by_kernel)
    return (total + by_bias.astype(wide)[None, :] + by_skip).astype(x.dtype)


_project.defvjp(_project_forward, _project_backward, _project_tangent)


def linear(
    x: Float[Array, "rows channel"],
    kernel: Float[Array, "channel out"],
    bias: Float[Array, " out"],
    skip: Float[Array, "rows out"],
    *,
    interpret: bool = False,
) -> Float[Array, "rows out"]:
    """Returns `x @ kernel + bias + skip`, rounded once to the dtype of `x`.

    Args:
        x: (rows, channel).
        kernel: (channel, out).
        bias: (out,).
        skip: (rows, out).
        interpret: whether to run the kernel as XLA operations, on any device.
    """
    shape = (x.shape[0], kernel.shape[1])
    (out,) = call_kernel(
        partial(_linear_kernel, shape=shape),
        "linear",
        *(x, kernel, bias, skip),
        grid=(_num_tiles(shape),),
        results=((shape, x.dtype),),
        flops=2 * math.prod(shape) * x.shape[1],
        num_stages=_STAGES,
        interpret=interpret,
    )
    return out


def _linear_kernel(
    x: Any, kernel: Any, bias: Any, skip: Any, out: Any, *, shape: Sequence[int]
) -> None:
    at, depth = _Place(shape), x.shape[1]

    def turn(index: Array, total: Array) -> Array:
        inner = index * _DEPTH + lax.iota(jnp.int32, _DEPTH)
        inside = inner < depth
        left = _load(x, at.row, inner, at.row_inside, inside)
        right = _load(kernel, inner, at.column, inside, at.column_inside)
        return total + dot(left, right)

    zeros = jnp.zeros((_ROWS, _COLUMNS), jnp.promote_types(x.dtype, jnp.float32))
    product = lax.fori_loop(0, cdiv(depth, _DEPTH), turn, zeros)
    product += at.vector(bias).astype(product.dtype)[None, :]
    at.store(out, product + at.load(skip).astype(product.dtype))


def layer_gradients(
    x: Float[Array, "rows channel"],
    cotangent: Float[Array, "rows out"],
    *,
    dtype: Any,
    interpret: bool = False,
) -> tuple[Float[Array, "channel out"], Float[Array, " out"]]:
    """Returns the gradients of kernel and bias of `x @ kernel + bias`.

    Args:
        x: (rows, channel).
        cotangent: (rows, out), of the result.
        dtype: dtype of the kernel.
        interpret: whether to run the kernel as XLA operations, on any device.

    Returns:
        `x.T @ cotangent` rounded to `dtype`, and the sum of the cotangent over all
        rows, float32 or wider. Both are sums over groups of rows in that precision.
    """
    rows, shape = len(x), (x.shape[1], cotangent.shape[1])
    target_groups = num_groups(rows, *shape, itemsize=x.dtype.itemsize)
    turns = cdiv(cdiv(rows, _DEPTH), target_groups)
    groups = cdiv(rows, turns * _DEPTH)
    wide = jnp.promote_types(x.dtype, jnp.float32)
    stored = dtype if groups == 1 else wide
    parts, sums = call_kernel(
        partial(_gradients_kernel, turns=turns, shape=shape),
        "layer_gradients",
        x,
        cotangent,
        grid=(_num_tiles(shape), groups),
        results=(((groups, *shape), stored), ((groups, shape[1]), wide)),
        flops=2 * math.prod(shape) * rows,
        num_stages=_STAGES,
        interpret=interpret,
    )
    gradient = parts[0] if groups == 1 else parts.sum(0).astype(dtype)
    return gradient, sums.sum(0)


def _gradients_kernel(
    x: Any,
    cotangent: Any,
    parts: Any,
    sums: Any,
    *,
    turns: int,
    shape: Sequence[int],
) -> None:
    at, group = _Place(shape), program_id(1)

    def load(index: Array) -> tuple[Array, Array]:
        row = (group * turns + index) * _DEPTH + lax.iota(jnp.int32, _DEPTH)
        inside = row < x.shape[0]
        left = _load(x, row, at.row, inside, at.row_inside)
        return left, _load(cotangent, row, at.column, inside, at.column_inside)

    def by_kernel(index: Array, total: Array) -> Array:
        left, right = load(index)
        return total + dot(left.T, right)

    def by_both(index: Array, totals: tuple[Array, Array]) -> tuple[Array, Array]:
        left, right = load(index)
        by_bias = totals[1] + right.astype(sums.dtype).sum(0)
        return totals[0] + dot(left.T, right), by_bias

    zeros = jnp.zeros((_ROWS, _COLUMNS), sums.dtype)

    def first() -> Array:
        zero = jnp.zeros(_COLUMNS, sums.dtype)
        total, by_bias = lax.fori_loop(0, turns, by_both, (zeros, zero))
        store(sums.at[group, at.column], by_bias, mask=at.column_inside)
        return total

    # One of the programs of a column of tiles sums the gradient of the bias.
    total = lax.cond(
        at.block == 0, first, lambda: lax.fori_loop(0, turns, by_kernel, zeros)
    )
    at.store(parts, total, group)


def _num_tiles(shape: Sequence[int]) -> int:
    return cdiv(shape[0], _ROWS) * cdiv(shape[1], _COLUMNS)


def _load(
    ref: Any, row: Array, column: Array, row_inside: Array, column_inside: Array
) -> Array:
    mask = row_inside[:, None] & column_inside[None, :]
    return load(ref.at[row[:, None], column[None, :]], mask=mask, other=0.0)
