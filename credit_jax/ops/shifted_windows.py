"""Index tables of attention in shifted windows (Swin Transformer V2)."""

from __future__ import annotations

import math

import numpy as np

from credit_jax.ops.padding import Pair


def scaled_offsets(window: Pair) -> np.ndarray:
    """Returns log-scaled offsets between tokens: inputs of Swin V2's bias network.

    sign(r) log2(|r| + 1) / log2(8) with r = 8 offset / (side - 1), as in timm's Swin
    Transformer V2.

    Args:
        window: rows h and columns w, both above 1.

    Returns:
        ((2h - 1)(2w - 1), 2) float32, row-major.
    """
    sides = [np.arange(-(w - 1), w, dtype=np.float32) / (w - 1) * 8 for w in window]
    table = np.stack(np.meshgrid(*sides, indexing="ij"), -1).reshape(-1, 2)
    # log2 in float64, rounded once to float32: bitwise torch's, unlike numpy's float32.
    logs = np.log2((np.abs(table) + np.float32(1)).astype(np.float64))
    return np.sign(table) * logs.astype(np.float32) / np.float32(math.log2(8))


def token_offsets(window: Pair) -> np.ndarray:
    """Returns (h w, h w, 2), rows and columns from token j to token i of a window."""
    grid = np.meshgrid(*map(np.arange, window), indexing="ij")
    tokens = np.stack(grid, -1).reshape(-1, 2)
    return tokens[:, None] - tokens[None, :]


def beyond_edge(window: Pair, shift: Pair) -> tuple[np.ndarray, np.ndarray]:
    """Returns which pairs of tokens of an edge window come from opposite edges.

    After the field is rolled by -s rows, the last s rows of its last windows come from
    the first rows of the field.

    Args:
        window: rows and columns.
        shift: rows and columns that the field was shifted by.

    Returns:
        Two (tokens, tokens) bool arrays, for rows and for columns.
    """
    grid = np.meshgrid(*map(np.arange, window), indexing="ij")
    masks = []
    for position, size, by in zip(grid, window, shift, strict=True):
        wrapped = (position >= size - by).reshape(-1)
        masks.append(wrapped[:, None] != wrapped[None, :])
    return masks[0], masks[1]
