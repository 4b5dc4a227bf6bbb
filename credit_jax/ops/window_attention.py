"""Attention within windows: positions, masks of shifted windows, biases by offset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from credit_jax.ops.space_to_depth import IntPair


def attention_logits(
    q: Float[Array, "*batch i channel"],
    k: Float[Array, "*batch j channel"],
    *,
    dtype: Any = None,
) -> Float[Array, "*batch i j"]:
    """Returns the dot product of each query with each key of its window."""
    return jnp.einsum("...id,...jd->...ij", q, k, preferred_element_type=dtype)


def attend(
    weights: Float[Array, "*batch i j"], values: Float[Array, "*batch j channel"]
) -> Float[Array, "*batch i channel"]:
    """Returns the weighted sum of the values of a window for each query."""
    return jnp.einsum("...ij,...jd->...id", weights, values)


def scaled_offsets(window: IntPair) -> np.ndarray:
    """Returns log-scaled offsets between tokens: inputs of Swin V2's bias network."""
    # sign(r) log2(|r| + 1) / log2(8) with r = 8 offset / (side - 1), as in timm's Swin
    # Transformer V2; ((2h - 1)(2w - 1), 2), row-major.
    sides = [np.arange(-(w - 1), w, dtype=np.float32) / (w - 1) * 8 for w in window]
    table = np.stack(np.meshgrid(*sides, indexing="ij"), -1).reshape(-1, 2)
    # log2 in float64, rounded once to float32: bitwise torch's, unlike numpy's float32.
    logs = np.log2((np.abs(table) + np.float32(1)).astype(np.float64))
    return np.sign(table) * logs.astype(np.float32) / np.float32(math.log2(8))


def beyond_edge(window: IntPair, shift: IntPair) -> tuple[np.ndarray, np.ndarray]:
    """Returns which pairs of tokens of an edge window come from opposite edges."""
    grid = np.meshgrid(*map(np.arange, window), indexing="ij")
    masks = []
    for position, size, by in zip(grid, window, shift, strict=True):
        # After the field is rolled by -s rows, the last s rows of its last windows come
        # from the first rows of the field.
        wrapped = (position >= size - by).reshape(-1)
        masks.append(wrapped[:, None] != wrapped[None, :])
    return masks[0], masks[1]


def bias_positions(window: int) -> np.ndarray:
    """Returns ((2w + 1)**2, 2) offsets -w..w, row-major: inputs of the bias network."""
    offsets = np.arange(-window, window + 1)
    grid = np.stack(np.meshgrid(offsets, offsets, indexing="ij"))
    return grid.reshape(2, -1).T


def pairs_of_offsets(
    table: Float[Array, " offset *rest"], window: Sequence[int]
) -> Float[Array, "tokens tokens *rest"]:
    """For tokens i and j of a window, the entry of the table of offset i - j."""
    # Entries are by offset of rows -(h - 1)..h - 1 and columns -(w - 1)..w - 1, and
    # tokens row-major.
    rows, columns = window
    remainder = table.shape[1:]
    # Copies of the table, each one entry further, take the place of a gather: its
    # gradient would add to entries in the order in which a GPU comes to them, another
    # one in every run, and is a sum over the copies here.
    y = _differences(table.reshape(2 * rows - 1, 2 * columns - 1, *remainder), rows)
    # A GPU adds each of the copies' gradients faster than those of both at once.
    y = lax.optimization_barrier(jnp.moveaxis(y, 2, 0))
    y = _differences(y, columns)
    # Now (column, column of the other, row, row of the other, ...).
    y = y.transpose(2, 0, 3, 1, *range(4, y.ndim))
    return y.reshape(rows * columns, rows * columns, *remainder)


def _differences(x: Array, length: int) -> Array:
    """Returns `y[i, j] = x[i - j + length - 1]`, (length, length, ...)."""
    if length == 1:
        return x[None]
    step, remainder = 2 * length - 2, x.shape[1:]
    # Row j of these copies begins j entries earlier than the copy that it is of.
    copies = jnp.broadcast_to(x, (length, *x.shape)).reshape(-1, *remainder)
    rows = copies[length - 1 : -1].reshape(length, step, *remainder)
    return jnp.swapaxes(rows[:, :length], 0, 1)


@dataclass(frozen=True)
class WindowDim:
    """Partition of one dim of a field into windows."""

    windows: int  # number of windows along the dim
    tokens: int  # number of tokens of a window along the dim
    window_step: int  # points from one window to the next
    token_step: int  # points from one token of a window to the next

    @property
    def points(self) -> int:
        """Length of the dim."""
        return self.windows * self.tokens


@dataclass(frozen=True)
class WindowGrid:
    """Partition of fields into windows: every point is one token of one window."""

    batch: int  # number of samples
    # The windows along the two dims.
    rows: WindowDim
    columns: WindowDim

    @property
    def tokens(self) -> int:
        """Number of tokens of a window."""
        return self.rows.tokens * self.columns.tokens

    @property
    def windows(self) -> int:
        """Number of windows of all samples."""
        return self.batch * self.rows.windows * self.columns.windows

    @property
    def points(self) -> int:
        """Number of points of all samples."""
        return self.batch * self.rows.points * self.columns.points

    def locate(
        self, window: Int[Array, "*shape"], token: Int[Array, "*shape"]
    ) -> Int[Array, "*shape"]:
        """Returns the flat index of the point of each token in (batch, row, column)."""
        # `window` is a flat index in (batch, row of windows, window).
        rows, columns = self.rows, self.columns
        column = window % columns.windows * columns.window_step
        column += token % columns.tokens * columns.token_step
        row_of_windows = window // columns.windows
        row = row_of_windows % rows.windows * rows.window_step
        row += token // columns.tokens * rows.token_step
        sample = row_of_windows // rows.windows
        return (sample * rows.points + row) * columns.points + column
