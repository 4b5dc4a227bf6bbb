"""Matrix products fused with the elementwise operations before and after them.

The left factor may pass a GELU first; a bias and a residual are added to the product,
or it is multiplied by the derivative of the GELU. The widest activations of a
transformer are therefore written once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float

from credit_jax.kernels.gpu.call import call_kernel
from credit_jax.kernels.gpu.dots import dot
from credit_jax.kernels.gpu.groups import TILE, num_groups

# Sides of a tile of the result, and the step along the contracted dim.
_ROWS, _COLUMNS, _DEPTH = TILE, TILE, 64
_STAGES = 3
# erf(z) = z P(z^2) / Q(z^2) in float32, with z clipped to +-_ERF_END.
_ERF_END = 3.7439211627767994
_ERF_ABOVE = (
    0.00022905065861350646,
    0.0034082910107109506,
    0.050955695062380861,
    0.18520832239976145,
    1.128379143519084,
)
_ERF_BELOW = (
    -1.1791602954361697e-7,
    0.000023547966471313185,
    0.0010179625278914885,
    0.014070470171167667,
    0.11098505178285362,
    0.49746925110067538,
    1.0,
)


@dataclass(frozen=True)
class _Product:
    """The matrix product that a kernel computes.

    Attributes:
        depth: length of the contracted dim.
        transposed: whether the right factor is stored as (out, channel).
        activated: whether the left factor is the GELU of the stored values.
    """

    depth: int
    transposed: bool = False
    activated: bool = False

    def tile(self, left: Any, right: Any, at: _Place) -> Array:
        """Returns a tile of the product, in float32 or wider."""

        def turn(index: Array, total: Array) -> Array:
            inner = index * _DEPTH + lax.iota(jnp.int32, _DEPTH)
            inside = inner < self.depth
            x = _load(left, at.row, inner, at.row_inside, inside)
            if self.activated:
                x = _gelu(x)
            if self.transposed:
                return total + dot(
                    x, _load(right, at.column, inner, at.column_inside, inside).T
                )
            weights = _load(right, inner, at.column, inside, at.column_inside)
            return total + dot(x, weights)

        wide = jnp.promote_types(left.dtype, jnp.float32)
        zeros = jnp.zeros((_ROWS, _COLUMNS), wide)
        return lax.fori_loop(0, pl.cdiv(self.depth, _DEPTH), turn, zeros)


class _Place:
    """Rows and columns of the tile of this program; the column varies fastest."""

    def __init__(self, shape: Sequence[int]) -> None:
        column, row = pl.program_id(0), pl.program_id(1)
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
        return triton.load(ref.at[self.column], mask=self.column_inside, other=0.0)

    def store(self, ref: Any, values: Array, *lead: Array) -> None:
        """Stores the tile at leading indices `lead` of the array."""
        mask = self.row_inside[:, None] & self.column_inside[None, :]
        where = ref.at[*lead, self.row[:, None], self.column[None, :]]
        triton.store(where, values.astype(ref.dtype), mask=mask)


def linear(
    x: Float[Array, "rows channel"],
    kernel: Float[Array, "channel out"],
    bias: Float[Array, " out"],
    skip: Float[Array, "rows out"] | None = None,
    *,
    activated: bool = False,
    interpret: bool = False,
) -> Float[Array, "rows out"]:
    """Returns `act(x) @ kernel + bias + skip`, rounded once to the dtype of `x`.

    Args:
        x: (rows, channel).
        kernel: (channel, out).
        bias: (out,).
        skip: (rows, out), or None for zero.
        activated: whether `act` is the exact GELU; otherwise it is the identity.
        interpret: whether to run the kernel as XLA operations, on any device.
    """
    product = _Product(x.shape[1], activated=activated)
    shape = (x.shape[0], kernel.shape[1])
    (out,) = call_kernel(
        partial(_linear_kernel, product=product, shape=shape),
        "linear",
        *(x, kernel, bias),
        *(() if skip is None else (skip,)),
        grid=_grid(shape),
        results=((shape, x.dtype),),
        flops=2 * math.prod(shape) * x.shape[1],
        num_stages=_STAGES,
        interpret=interpret,
    )
    return out


def _linear_kernel(
    x: Any, kernel: Any, bias: Any, *refs: Any, product: _Product, shape: Sequence[int]
) -> None:
    at = _Place(shape)
    made = product.tile(x, kernel, at)
    made += at.vector(bias).astype(made.dtype)[None, :]
    for skip in refs[:-1]:
        made += at.load(skip).astype(made.dtype)
    at.store(refs[-1], made)


def hidden_gradient(
    cotangent: Float[Array, "rows out"],
    kernel: Float[Array, "hidden out"],
    hidden: Float[Array, "rows hidden"],
    *,
    interpret: bool = False,
) -> tuple[Float[Array, "rows hidden"], Float[Array, " hidden"]]:
    """Returns the gradient of `gelu(hidden) @ kernel` with respect to `hidden`.

    Args:
        cotangent: (rows, out), of the product.
        kernel: (hidden, out).
        hidden: (rows, hidden).
        interpret: whether to run the kernel as XLA operations, on any device.

    Returns:
        The gradient, and its sum over all rows, float32 or wider.
    """
    product = _Product(kernel.shape[1], transposed=True)
    shape = hidden.shape
    wide = jnp.promote_types(hidden.dtype, jnp.float32)
    gradient, sums = call_kernel(
        partial(_hidden_kernel, product=product, shape=shape),
        "hidden_gradient",
        cotangent,
        kernel,
        hidden,
        grid=_grid(shape),
        results=(
            (shape, hidden.dtype),
            ((pl.cdiv(shape[0], _ROWS), shape[1]), wide),
        ),
        flops=2 * math.prod(shape) * kernel.shape[1],
        num_stages=_STAGES,
        interpret=interpret,
    )
    return gradient, sums.sum(0)


def _hidden_kernel(
    cotangent: Any,
    kernel: Any,
    hidden: Any,
    gradient: Any,
    sums: Any,
    *,
    product: _Product,
    shape: Sequence[int],
) -> None:
    at = _Place(shape)
    made = product.tile(cotangent, kernel, at)
    wide = at.load(hidden).astype(made.dtype)
    below = distribution(wide)
    density = jnp.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
    made = made * (below + wide * density)
    at.store(gradient, made)
    triton.store(sums.at[at.block, at.column], made.sum(0), mask=at.column_inside)


def layer_gradients(
    x: Float[Array, "rows channel"],
    cotangent: Float[Array, "rows out"],
    *,
    dtype: Any,
    activated: bool = False,
    interpret: bool = False,
) -> tuple[Float[Array, "channel out"], Float[Array, " out"]]:
    """Returns the gradients of kernel and bias of `act(x) @ kernel + bias`.

    Args:
        x, activated: as for `linear`.
        cotangent: (rows, out), of the result.
        dtype: dtype of the kernel.
        interpret: whether to run the kernel as XLA operations, on any device.

    Returns:
        `act(x).T @ cotangent` rounded to `dtype`, and the sum of the cotangent over all
        rows, float32 or wider. Both are sums over groups of rows in that precision.
    """
    rows, shape = len(x), (x.shape[1], cotangent.shape[1])
    wanted = num_groups(rows, *shape, itemsize=x.dtype.itemsize)
    turns = pl.cdiv(pl.cdiv(rows, _DEPTH), wanted)
    groups = pl.cdiv(rows, turns * _DEPTH)
    wide = jnp.promote_types(x.dtype, jnp.float32)
    stored = dtype if groups == 1 else wide
    parts, sums = call_kernel(
        partial(_gradients_kernel, turns=turns, shape=shape, activated=activated),
        "layer_gradients",
        x,
        cotangent,
        grid=(*_grid(shape), groups),
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
    activated: bool,
) -> None:
    at, group = _Place(shape), pl.program_id(2)

    def turn(index: Array, totals: tuple[Array, Array]) -> tuple[Array, Array]:
        row = (group * turns + index) * _DEPTH + lax.iota(jnp.int32, _DEPTH)
        inside = row < x.shape[0]
        left = _load(x, row, at.row, inside, at.row_inside)
        given = _load(cotangent, row, at.column, inside, at.column_inside)
        product = dot((_gelu(left) if activated else left).T, given)
        by_kernel, by_bias = totals
        return by_kernel + product, by_bias + given.astype(sums.dtype).sum(0)

    zeros = tuple(jnp.zeros(s, sums.dtype) for s in ((_ROWS, _COLUMNS), _COLUMNS))
    by_kernel, by_bias = lax.fori_loop(0, turns, turn, zeros)
    at.store(parts, by_kernel, group)
    # All programs of a column of tiles compute the same sum; one of them stores it.
    once = at.column_inside & (at.block == 0)
    triton.store(sums.at[group, at.column], by_bias, mask=once)


def _gelu(x: Array) -> Array:
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (wide * distribution(wide)).astype(x.dtype)


def distribution(x: Array) -> Array:
    """Cumulative distribution function of the standard normal distribution.

    Pallas on Triton has no erf; this is XLA's rational approximation for float32.
    """
    z = jnp.clip(x * math.sqrt(0.5), -_ERF_END, _ERF_END)
    square = z * z
    above, below = (
        reduce(lambda total, term: total * square + term, polynomial[1:], polynomial[0])
        for polynomial in (_ERF_ABOVE, _ERF_BELOW)
    )
    return 0.5 * (1 + z * above / below)


def _grid(shape: Sequence[int]) -> tuple[int, int]:
    return pl.cdiv(shape[1], _COLUMNS), pl.cdiv(shape[0], _ROWS)


def _load(
    ref: Any, row: Array, column: Array, row_inside: Array, column_inside: Array
) -> Array:
    mask = row_inside[:, None] & column_inside[None, :]
    return triton.load(ref.at[row[:, None], column[None, :]], mask=mask, other=0.0)
