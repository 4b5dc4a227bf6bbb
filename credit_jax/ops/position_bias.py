"""Biases of pairs of tokens from tables of their offsets."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float


def bias_positions(window: int) -> np.ndarray:
    """Returns ((2w + 1)**2, 2) offsets -w..w, row-major: inputs of the bias network."""
    offsets = np.arange(-window, window + 1)
    grid = np.stack(np.meshgrid(offsets, offsets, indexing="ij"))
    return grid.reshape(2, -1).T


def pairs_of_offsets(
    table: Float[Array, " offset *rest"], window: Sequence[int]
) -> Float[Array, "tokens tokens *rest"]:
    """Returns the entry of the table for each pair of tokens of a window.

    Copies of the table, each one entry further, take the place of a gather: its
    gradient would add to entries in the order in which a GPU comes to them, another
    one in every run, and is a sum over the copies here.

    Args:
        table: ((2h - 1) * (2w - 1), ...), entries by offset of rows -(h - 1)..h - 1 and
            columns -(w - 1)..w - 1, row-major.
        window: (h, w), rows and columns of a window.

    Returns:
        (h * w, h * w, ...): for tokens i and j, row-major, the entry of i - j.
    """
    rows, columns = window
    rest = table.shape[1:]
    y = _differences(table.reshape(2 * rows - 1, 2 * columns - 1, *rest), rows)
    # A GPU adds each of the copies' gradients faster than those of both at once.
    y = lax.optimization_barrier(jnp.moveaxis(y, 2, 0))
    y = _differences(y, columns)
    # Now (column, column of the other, row, row of the other, ...).
    y = y.transpose(2, 0, 3, 1, *range(4, y.ndim))
    return y.reshape(rows * columns, rows * columns, *rest)


def _differences(x: Array, length: int) -> Array:
    """Returns `y[i, j] = x[i - j + length - 1]`, (length, length, ...)."""
    if length == 1:
        return x[None]
    step, rest = 2 * length - 2, x.shape[1:]
    # Row j of these copies begins j entries earlier than the copy that it is of.
    copies = jnp.broadcast_to(x, (length, *x.shape)).reshape(-1, *rest)
    rows = copies[length - 1 : -1].reshape(length, step, *rest)
    return jnp.swapaxes(rows[:, :length], 0, 1)


def credit_table(
    table: Float[Array, " positions"], window: int
) -> Float[Array, " offset"]:
    """Returns the part of CREDIT's table that is read, by offset.

    The table has 2w + 1 columns but is read with a stride of 2w - 1, as in CREDIT.
    Trained weights depend on it (CREDIT 2026.2.0, models/wxformer/crossformer.py:478,
    528).

    Args:
        table: ((2w + 1)**2,), entries by `bias_positions`.
        window: w, tokens along each side of a window.

    Returns:
        ((2w - 1)**2,), as for `pairs_of_offsets`.
    """
    return table[: (2 * window - 1) ** 2]
