"""Convolutions with a stride, and transposed ones, as convolutions of stride 1.

The *phases* of a dim with stride s are the points 0, s, 2 s, ..., the points 1, s + 1,
..., and so on. A convolution of stride s is one of stride 1 from all phases of its
input (in channels); a transposed convolution is one of stride 1 to all phases of its
output. So no backend has to skip points or put zeros between them, in either direction.
XLA on CPU does that 5 to 20 times more slowly in the gradients.

For the same reason inputs are padded first: the gradient by the kernel is slow on CPU
where the padding of a convolution makes the output larger than the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

from credit_jax.ops.dense import dense

LAYOUTS = {2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}


def dense_taps(
    kernel: Array, stride: Sequence[int], dilation: Sequence[int]
) -> tuple[Array, tuple[int, ...]]:
    """Zeros between dilated taps of dims with a stride; the dilation that is left.

    Args:
        kernel: (sizes..., channel, channel).
        stride, dilation: of every spatial dim.
    """
    wide = [s > 1 and d > 1 for s, d in zip(stride, dilation, strict=True)]
    left = tuple(1 if w else d for w, d in zip(wide, dilation, strict=True))
    if not any(wide):
        return kernel, left
    between = [d - 1 if w else 0 for w, d in zip(wide, dilation, strict=True)]
    widths = [(0, 0, zeros) for zeros in (*between, 0, 0)]
    return lax.pad(kernel, jnp.zeros((), kernel.dtype), widths), left


def split_taps(kernel: Array, stride: Sequence[int]) -> tuple[Array, list[int]]:
    """Every spatial dim of a kernel as two: (taps of a phase, phases).

    Tap t * stride + p of the kernel is tap t of phase p; zeros fill the last taps.

    Returns:
        (taps, phases, taps, phases, ..., channel, channel) and the taps.
    """
    *sizes, first, second = kernel.shape
    taps = [-(-size // s) for size, s in zip(sizes, stride, strict=True)]
    missing = [t * s - n for t, s, n in zip(taps, stride, sizes, strict=True)]
    kernel = fit(kernel, [(0, more) for more in (*missing, 0, 0)])
    split = [n for pair in zip(taps, stride, strict=True) for n in pair]
    return kernel.reshape(*split, first, second), taps


def space_to_depth(x: Array, stride: Sequence[int], groups: int) -> Array:
    """Space to depth: channels become (group, phases, channels of a group).

    Args:
        x: (batch, sizes..., channel); strides divide sizes.
        stride: of every spatial dim.
        groups: number of channel groups.
    """
    num = len(stride)
    batch, *sizes, channels = x.shape
    points = [n // s for n, s in zip(sizes, stride, strict=True)]
    split = [n for pair in zip(points, stride, strict=True) for n in pair]
    x = x.reshape(batch, *split, groups, channels // groups)
    order = [0, *range(1, 2 * num, 2), 2 * num + 1, *range(2, 2 * num + 1, 2)]
    x = x.transpose(*order, 2 * num + 2)
    return x.reshape(batch, *points, channels * prod(stride))


def depth_to_space(x: Array, stride: Sequence[int], groups: int) -> Array:
    """Depth to space: the inverse of `space_to_depth`."""
    num = len(stride)
    batch, *points, channels = x.shape
    per_group = channels // groups // prod(stride)
    x = x.reshape(batch, *points, groups, *stride, per_group)
    pairs = [dim for d in range(num) for dim in (1 + d, 2 + num + d)]
    x = x.transpose(0, *pairs, 1 + num, 2 + 2 * num)
    sizes = [n * s for n, s in zip(points, stride, strict=True)]
    return x.reshape(batch, *sizes, groups * per_group)


def unit_stride_conv(
    x: Array, kernel: Array, *, dilation: Sequence[int], groups: int
) -> Array:
    """Convolution of stride 1 without padding; of one tap it is a matrix product."""
    sizes = kernel.shape[:-2]
    if prod(sizes) == 1 and groups == 1:
        return dense(x, kernel.reshape(kernel.shape[-2:]))
    return lax.conv_general_dilated(
        x,
        kernel,
        (1,) * len(sizes),
        "VALID",
        rhs_dilation=dilation,
        dimension_numbers=LAYOUTS[len(sizes)],
        feature_group_count=groups,
    )


def fit(x: Array, ends: Sequence[tuple[int, int]]) -> Array:
    """Zeros to add at both ends of every dim; where negative, points to leave out."""
    if not any(low or high for low, high in ends):
        return x
    widths = [(low, high, 0) for low, high in ends]
    return lax.pad(x, jnp.zeros((), x.dtype), widths)
