"""Interpolation weights of torch.nn.functional.interpolate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Taps:
    """Positions and weights of two-point interpolation along one dim.

    out[i] = (1 - weight[i]) * x[low[i]] + weight[i] * x[high[i]]
    """

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
    align_corners: bool = False,
    dtype: type[np.floating] = np.float64,
) -> Taps:
    """Returns the taps of linear interpolation from `size_in` to `size_out` points.

    align_corners False (PyTorch's default): source = max((i + 0.5) * size_in / size_out
    - 0.5, 0); align_corners True: source = i * (size_in - 1) / (size_out - 1).

    Positions are rounded to the dtype of the data as in torch, whose kernels round the
    scale, then the position once. In float32 a position near 700 has an error of up to
    3e-5, which the weights inherit.

    Args:
        size_in, size_out: number of points.
        align_corners: whether the end points of input and output coincide.
        dtype: dtype of the data.

    >>> linear_taps(2, 4).weight.tolist()
    [0.0, 0.25, 0.75, 0.0]
    """
    points = np.arange(size_out, dtype=np.float64)
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
    """Returns the input position of each output point, floor(i * size_in / size_out).

    Scale and product are rounded to float32, as in torch for data of any dtype.

    Args:
        size_in, size_out: number of points.
        half_pixel: whether i + 0.5 takes the place of i, as in torch's mode
            nearest-exact.
    """
    scale = np.float32(size_in) / np.float32(size_out)
    points = np.arange(size_out, dtype=np.float32)
    if half_pixel:
        points = points + np.float32(0.5)
    return np.minimum((points * scale).astype(np.int64), size_in - 1)


def area_taps(size_in: int, size_out: int) -> Taps:
    """Returns the taps of torch's mode area to at least as many points.

    Output i is the mean of the one or two input points of the interval from
    i * size_in / size_out to (i + 1) * size_in / size_out.

    Raises:
        ValueError: there are fewer output than input points.

    >>> area_taps(3, 5).weight.tolist()
    [0.0, 0.5, 0.0, 0.5, 0.0]
    """
    if size_out < size_in:
        raise ValueError(
            f"mode area from {size_in} to {size_out} points; expected at least as many"
        )
    points = np.arange(size_out)
    low = points * size_in // size_out
    high = -(-(points + 1) * size_in // size_out) - 1
    return Taps(low, high, np.where(high > low, 0.5, 0.0))
