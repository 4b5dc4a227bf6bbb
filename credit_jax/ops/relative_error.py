"""Relative L2 errors, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def joint_error(
    actual: Mapping[str, ArrayLike], expected: Mapping[str, ArrayLike]
) -> float:
    """The relative error of all arrays of `expected` as one vector."""
    return relative_error(
        *(
            np.concatenate([np.ravel(np.asarray(arrays[key])) for key in expected])
            for arrays in (actual, expected)
        )
    )


def errors_of_arrays(
    actual: Mapping[Any, ArrayLike], expected: Mapping[Any, ArrayLike], floor: float
) -> dict[Any, float]:
    """The error of each array, relative to at least a share of the largest norm.

    Args:
        actual, expected: arrays by the same names.
        floor: this share; a gradient may be zero except for rounding.
    """
    norms = {
        key: float(np.linalg.norm(np.asarray(array, np.float64)))
        for key, array in expected.items()
    }
    least = floor * max(norms.values(), default=0.0)
    return {
        key: relative_error(actual[key], array)
        * (norms[key] or 1.0)
        / (max(norms[key], least) or 1.0)
        for key, array in expected.items()
    }
