"""Products, sums and factors of many matrices at once, their vectors packed.

Packed are the rows of several arrays as one flat array, those of one array after those
of another: collectives and elementwise operations on all of them are one each.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

# (count, length) of the rows of each of several arrays.
Rows = tuple[tuple[int, ...], ...]
Side = Literal["u", "v"]


def pack(arrays: Sequence[Array]) -> Shaped[Array, " packed"]:
    """Returns the values of all arrays."""
    return jnp.concatenate([array.reshape(-1) for array in arrays])


def unpack(
    packed: Shaped[Array, " packed"], shapes: Sequence[tuple[int, ...]]
) -> list[Array]:
    """Returns the arrays of these shapes: inverts `pack`."""
    parts = lax.split(packed, [prod(shape) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def unstack(arrays: Sequence[Shaped[Array, "num ..."]]) -> list[list[Array]]:
    """The slices of every array along its first dim, those of a slice together."""
    each = [slices(array) for array in arrays]
    return [list(item) for item in zip(*each, strict=True)]


def slices(array: Shaped[Array, "num ..."]) -> list[Array]:
    """Returns the slices of an array along its first dim."""
    # The transpose of `split` is one concatenation, that of slices is a sum of arrays.
    parts = lax.split(array, [1] * len(array))
    return [part.reshape(array.shape[1:]) for part in parts]


def spread(numbers: Float[Array, " rows"], rows: Rows) -> Float[Array, " packed"]:
    """Returns the number of its row for each packed value."""
    parts = unpack(numbers, tuple((count, 1) for count, _ in rows))
    return pack(
        [jnp.broadcast_to(part, shape) for part, shape in zip(parts, rows, strict=True)]
    )


def products(
    matrices: Sequence[Float[Array, "_ _ _"]],
    vectors: Float[Array, " packed"],
    side: Side,
) -> Float[Array, " packed_products"]:
    """Returns W' u (side "u") or W v (side "v") of all matrices, packed.

    Args:
        matrices: W of each, (count, inputs, outputs).
        vectors: u, (count, outputs), or v, (count, inputs), of each, packed.
    """
    equation = {"v": "nio,ni->no", "u": "nio,no->ni"}[side]
    rows = unpack(vectors, rows_of(matrices, side))
    pairs = zip(matrices, rows, strict=True)
    return pack([jnp.einsum(equation, *pair, precision="highest") for pair in pairs])


def rows_of(matrices: Sequence[Array], side: Side) -> Rows:
    """Returns the shapes of the vectors u or v of each matrix."""
    along = {"u": 2, "v": 1}[side]
    return tuple((len(matrix), matrix.shape[along]) for matrix in matrices)


def dots(
    left: Float[Array, " packed"], right: Float[Array, " packed"], rows: Rows
) -> Float[Array, " rows"]:
    """Returns the sum of `left * right` over each row of packed arrays."""
    return jnp.concatenate([part.sum(1) for part in unpack(left * right, rows)])


def scale(
    arrays: Sequence[Float[Array, "_ ..."]], factors: Float[Array, " rows"]
) -> list[Float[Array, "_ ..."]]:
    """Multiplies each row of each array by its factor."""
    parts = lax.split(factors, [len(array) for array in arrays])
    return [
        array * part.reshape(-1, *[1] * (array.ndim - 1))
        for array, part in zip(arrays, parts, strict=True)
    ]
