"""Interpolation weights of torch.nn.functional.interpolate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Taps:
    """Interpolation along one dim: (1 - weight) * x[low] + weight * x[high]."""

    # (out,) integers, input positions.
    low: np.ndarray
    high: np.ndarray
    weight: np.ndarray  # (out,) floats in [0, 1), the weight of `high`

    @property
    def is_copy(self) -> bool:
        """Whether every output point copies one input point (mode nearest)."""
        return bool((self.low == self.high).all() and not self.weight.any())


def linear_taps(
    size_in: int,
    size_out: int,
    *,
    align_corners: bool = False,  # whether the end points coincide
    dtype: type[np.floating] = np.float64,  # of the data
) -> Taps:
    """Returns the taps of linear interpolation from `size_in` to `size_out` points."""
    points = np.arange(size_out, dtype=np.float64)
    # Positions are rounded to the dtype of the data as in torch, whose kernels round
    # the scale, then the position once. In float32 a position near 700 has an error of
    # up to 3e-5, which the weights inherit.
    if align_corners:
        ends = dtype(size_in - 1), dtype(max(size_out - 1, 1))
        exact = points * float(ends[0] / ends[1] if size_out > 1 else 0)
    else:
        scale = float(dtype(size_in) / dtype(size_out))
        exact = np.maximum((points + 0.5) * scale - 0.5, 0)
    source = exact.astype(dtype)
    low = np.minimum(np.floor(source).astype(np.int64), size_in - 1)
    high = np.minimum(low + 1, size_in - 1)
    weight = np.where(high > low, source - low, 0.0)
    return Taps(low, high, weight)


def nearest_taps(
    size_in: int, size_out: int, *, half_pixel: bool = False
) -> np.ndarray:
    """The input position of each output point, floor(i * size_in / size_out)."""
    # Scale and product are rounded to float32, as in torch for data of any dtype.
    scale = np.float32(size_in) / np.float32(size_out)
    points = np.arange(size_out, dtype=np.float32)
    if half_pixel:
        # As in torch's mode nearest-exact.
        points = points + np.float32(0.5)
    return np.minimum((points * scale).astype(np.int64), size_in - 1)


def area_taps(size_in: int, size_out: int) -> Taps:
    """Returns the taps of torch's mode area to at least as many points."""
    if size_out < size_in:
        raise ValueError(
            f"mode area from {size_in} to {size_out} points; expected at least as many"
        )
    # Output i is the mean of the one or two input points of the interval from
    # i * size_in / size_out to (i + 1) * size_in / size_out.
    points = np.arange(size_out)
    low = points * size_in // size_out
    high = -(-(points + 1) * size_in // size_out) - 1
    return Taps(low, high, np.where(high > low, 0.5, 0.0))
