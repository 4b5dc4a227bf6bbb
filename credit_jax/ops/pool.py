"""Windows of average and maximum pooling along one dim, as in torch.nn.functional."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from credit_jax.ops.conv import Padding
from credit_jax.ops.space_to_depth import IntPair, pad_dim

HEIGHT, WIDTH = 1, 2


@dataclass(frozen=True)
class PoolingWindows:
    """Pooling windows of equal size along one dim."""

    size: int  # number of points of a window
    stride: int  # points from one window to the next
    padding: IntPair  # points to add (low, high)

    def count(self, length: int) -> int:
        """Returns the number of windows over `length` points."""
        low, high = self.padding
        num = (length + low + high - self.size) // self.stride + 1
        if num < 1:
            raise ValueError(
                f"a window reaches over {self.size} points, but there are {length} "
                f"and {low} + {high} of padding; make the window smaller"
            )
        return num

    def points(self, length: int) -> np.ndarray:
        """Returns the number of points that each window averages, with the padding."""
        return np.full(self.count(length), self.size)


def pool_windows(
    kernel: IntPair,
    stride: IntPair | None,
    padding: Padding,
) -> tuple[PoolingWindows, PoolingWindows]:
    """Returns the windows of height and of width."""
    stride = kernel if stride is None else stride
    if min(*kernel, *stride) < 1:
        raise ValueError(f"kernel is {kernel}, stride {stride}; expected 1 or more")
    for size, pair in zip(kernel, padding, strict=True):
        if not 0 <= min(pair) <= max(pair) <= size // 2:
            raise ValueError(
                f"padding is {pair} for windows of {size} points; expected 0 to "
                f"{size // 2}: at most half a window"
            )
    height, width = (
        PoolingWindows(*of_dim) for of_dim in zip(kernel, stride, padding, strict=True)
    )
    return height, width


def window_sum(
    x: Array, window: PoolingWindows, num: int, dim: int, *, low: int
) -> Array:
    """Returns sums of `num` windows along `dim`, with `low` zeros in front of x."""
    # Points beyond the end of x are zeros, too.
    x = _points_of(x, window, num, dim, low=low, value=0.0)
    if window.size == window.stride:
        shape = (*x.shape[:dim], num, window.size, *x.shape[dim + 1 :])
        return x.reshape(shape).sum(dim + 1)
    size, stride = [1] * x.ndim, [1] * x.ndim
    size[dim], stride[dim] = window.size, window.stride
    return lax.reduce_window(x, 0.0, lax.add, size, stride, "VALID")


def window_max(
    x: Array, window: PoolingWindows, num: int, dim: int, *, low: int
) -> Array:
    """Maxima of `num` windows along `dim`; ties give the gradient to the first."""
    # The `low` points in front of x are never the maximum.
    x = _points_of(x, window, num, dim, low=low, value=-jnp.inf)
    best = None
    for point in range(window.size):
        end = point + (num - 1) * window.stride + 1
        new = lax.slice_in_dim(x, point, end, window.stride, dim)
        if best is None:
            best = new
        else:
            best = jnp.where((new > best) | jnp.isnan(new), new, best)
    assert best is not None
    return best


def _points_of(
    x: Array, window: PoolingWindows, num: int, dim: int, *, low: int, value: float
) -> Array:
    """Crops or pads `x` with `value` to exactly the points that `num` windows read."""
    length = (num - 1) * window.stride + window.size
    if low + x.shape[dim] > length:
        x = lax.slice_in_dim(x, 0, length - low, axis=dim)
    high = max(length - low - x.shape[dim], 0)
    return pad_dim(x, dim, (low, high), value)


def along(values: Array, dim: int, ndim: int) -> Array:
    """Reshapes a vector to broadcast along dim `dim` of an array with `ndim` dims."""
    return values.reshape([-1 if d == dim else 1 for d in range(ndim)])
