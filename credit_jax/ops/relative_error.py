"""The relative L2 error, in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def relative_error(actual: ArrayLike, expected: ArrayLike) -> float:
    """|actual - expected| / |expected|, Euclidean norms in float64.

    Returns |actual - expected| if `expected` is zero everywhere, and infinity if shapes
    differ or values are not finite.
    """
    a = np.asarray(actual).astype(np.float64)
    b = np.asarray(expected).astype(np.float64)
    if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("inf")
    scale = np.linalg.norm(b.ravel())
    return float(np.linalg.norm((a - b).ravel()) / (scale if scale > 0 else 1.0))
