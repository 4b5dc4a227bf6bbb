"""Several arrays as one flat array, so that collectives on all of them are one each."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped


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
