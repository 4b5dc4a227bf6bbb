"""Index tables of CREDIT's dynamic position bias."""

from __future__ import annotations

import numpy as np


def bias_positions(window: int) -> np.ndarray:
    """Returns ((2w + 1)**2, 2) offsets -w..w, row-major: inputs of the bias network."""
    offsets = np.arange(-window, window + 1)
    grid = np.stack(np.meshgrid(offsets, offsets, indexing="ij"))
    return grid.reshape(2, -1).T


def bias_index(window: int) -> np.ndarray:
    """Returns (w * w, w * w), the entry of the table that token i reads for token j.

    The table has 2w + 1 columns but is read with a stride of 2w - 1, as in CREDIT.
    Trained weights depend on it (CREDIT 2026.2.0, models/wxformer/crossformer.py:478,
    528).
    """
    tokens = np.arange(window)
    grid = np.stack(np.meshgrid(tokens, tokens, indexing="ij")).reshape(2, -1).T
    offsets = grid[:, None] - grid[None, :] + window - 1
    return offsets @ np.array([2 * window - 1, 1])
