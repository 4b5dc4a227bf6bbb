"""Average and maximum pooling of NHWC arrays, as in torch.nn.functional.

Height and width are pooled one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.conv import NO_PADDING, Padding
from credit_jax.ops.space_to_depth import IntPair, pad_dim

HEIGHT, WIDTH = 1, 2


def avg_pool2d(
    x: Float[Array, "batch height width channel"],
    kernel: IntPair,
    *,
    stride: IntPair | None = None,  # None for the kernel
    padding: Padding = NO_PADDING,  # torch's `padding=p` is ((p, p), (p, p))
    ceil_mode: bool = False,
) -> Float[Array, "batch height_out width_out channel"]:
    """Mean of each window, as torch.nn.functional.avg_pool2d."""
    windows = pool_windows(kernel, stride, padding, ceil_mode=ceil_mode)
    sums = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    for dim, window in zip((HEIGHT, WIDTH), windows, strict=True):
        num = window.count(x.shape[dim])
        points = window.points(x.shape[dim])
        sums = window_sum(sums, window, num, dim, low=window.padding[0])
        sums = sums / along(jnp.asarray(points, sums.dtype), dim, 4)
    return sums.astype(x.dtype)


def max_pool2d(
    x: Float[Array, "batch height width channel"],
    kernel: IntPair,
    *,
    stride: IntPair | None = None,
    padding: Padding = NO_PADDING,
    dilation: IntPair = (1, 1),
    ceil_mode: bool = False,
) -> Float[Array, "batch height_out width_out channel"]:
    """Maximum of each window, as torch.nn.functional.max_pool2d; NaN propagates."""
    windows = pool_windows(kernel, stride, padding, dilation, ceil_mode=ceil_mode)
    # Columns first, so that ties go to the first maximum in row-major order.
    for dim in (WIDTH, HEIGHT):
        window = windows[dim - 1]
        num = window.count(x.shape[dim])
        x = window_max(x, window, num, dim, low=window.padding[0])
    return x


@dataclass(frozen=True)
class PoolingWindows:
    """Pooling windows of equal size along one dim."""

    size: int  # number of points of a window
    stride: int  # points from one window to the next
    padding: IntPair  # points to add (low, high)
    dilation: int  # spacing of the points of a window
    ceil_mode: bool  # whether to keep a last window that is not full

    @property
    def reach(self) -> int:
        """Length from the first to the last point of a window, both included."""
        return self.dilation * (self.size - 1) + 1

    def count(self, length: int) -> int:
        """Returns the number of windows over `length` points."""
        low, high = self.padding
        over = length + low + high - self.reach
        num = (-(-over // self.stride) if self.ceil_mode else over // self.stride) + 1
        # A last window that is not full starts within the input or its low padding.
        if self.ceil_mode and (num - 1) * self.stride >= length + low:
            num -= 1
        if num < 1:
            raise ValueError(
                f"a window reaches over {self.reach} points, but there are {length} "
                f"and {low} + {high} of padding; make the window smaller"
            )
        return num

    def points(self, length: int) -> np.ndarray:
        """Returns the number of points that each window averages, without dilation."""
        low, high = self.padding
        start = np.arange(self.count(length)) * self.stride - low
        # Zeros of the padding count, points of a last window beyond it never.
        return np.minimum(start + self.size, length + high) - start


def pool_windows(
    kernel: IntPair,
    stride: IntPair | None,
    padding: Padding,
    dilation: IntPair = (1, 1),
    *,
    ceil_mode: bool,
) -> tuple[PoolingWindows, PoolingWindows]:
    """Returns the windows of height and of width."""
    stride = kernel if stride is None else stride
    if min(*kernel, *stride, *dilation) < 1:
        raise ValueError(
            f"kernel is {kernel}, stride {stride}, dilation {dilation}; expected 1 or "
            "more"
        )
    for size, pair in zip(kernel, padding, strict=True):
        if not 0 <= min(pair) <= max(pair) <= size // 2:
            raise ValueError(
                f"padding is {pair} for windows of {size} points; expected 0 to "
                f"{size // 2}: at most half a window"
            )
    height, width = (
        PoolingWindows(kernel[i], stride[i], padding[i], dilation[i], ceil_mode)
        for i in range(2)
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
        start = point * window.dilation
        end = start + (num - 1) * window.stride + 1
        new = lax.slice_in_dim(x, start, end, window.stride, dim)
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
    length = (num - 1) * window.stride + window.reach
    if low + x.shape[dim] > length:
        x = lax.slice_in_dim(x, 0, length - low, axis=dim)
    high = max(length - low - x.shape[dim], 0)
    return pad_dim(x, dim, (low, high), value)


def along(values: Array, dim: int, ndim: int) -> Array:
    """Reshapes a vector to broadcast along dim `dim` of an array with `ndim` dims."""
    return values.reshape([-1 if d == dim else 1 for d in range(ndim)])
