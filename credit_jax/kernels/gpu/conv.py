"""Two-dimensional convolutions of 16-bit fields with few or odd numbers of channels.

Libraries multiply tiles of 128 output channels, whatever part of a tile is used, and
copy fields whose channels are no multiple of `_ALIGNED`. On an H200 the largest kernels
of WXFormer's embedding, with 16 output channels, ran at an eighth of the rate of others
and took a quarter of a training step (docs/gpu_kernels.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod

from jaxtyping import Array, Float

from credit_jax import ops
from credit_jax.kernels.gpu.dense import TILE, TILES, row_major
from credit_jax.ops.conv import NO_PADDING, AnyPadding, Padding, checked_padding
from credit_jax.ops.space_to_depth import (
    IntPair,
    conv_out_size,
    kernel_phases,
    pad,
    pad_spatial,
    plain_conv,
    points_together,
    space_to_depth,
)

# The multiples of few and of many channels that tensor cores take: on an H200 72
# channels took 2.5 ms, 96 of them 1.3 (3 x 3 taps, 800 x 1440 points, with gradients).
_ALIGNED, _ALIGNED_WIDE = 8, 32
# Most output points of a dim that are computed together.
_MOST = 8
# Points are computed together if the work shrinks at least to this fraction.
_WORTH = 0.8


def conv2d(
    x: Float[Array, "batch height width channel_in"],
    kernel: Float[Array, "kernel_h kernel_w group_in channel_out"],
    *,
    stride: IntPair = (1, 1),
    padding: AnyPadding = NO_PADDING,
    dilation: IntPair = (1, 1),
    groups: int = 1,
) -> Float[Array, "batch height_out width_out channel_out"]:
    """`ops.conv2d`, with as many channels as tensor cores like."""
    kernel = row_major(kernel)
    pads = checked_padding(
        x.shape[1:-1], kernel.shape[:2], padding, stride=stride, dilation=dilation
    )
    if groups != 1:
        return plain_conv(x, kernel, stride, pads, dilation, groups)
    out, points = kernel.shape[3], len(x)
    for d in (0, 1):
        points *= conv_out_size(x.shape[1 + d], kernel.shape[d], stride[d], pads[d])
    narrow = (*kernel.shape[:3], out + _missing(out, alone=False))
    counts = (1, 1) if dilation != (1, 1) else best_counts(narrow, stride, points)
    missing = [_missing(n, alone=counts == (1, 1)) for n in kernel.shape[2:]]
    x = pad(x, ((0, 0), (0, 0), (0, 0), (0, missing[0])))
    kernel = pad(kernel, ((0, 0), (0, 0), *((0, more) for more in missing)))
    if counts == (1, 1):
        y = plain_conv(x, kernel, stride, pads, dilation, 1)
    else:
        # With few output channels a tile holds those of several neighboring points,
        # whose kernels are shifted and padded with zeros; the convolution is then one
        # of stride 1 whose input channels are the phases of the field.
        y = points_together(x, kernel, stride, pads, counts, _at_stride_one)
    return y[..., :out]


def _missing(channels: int, *, alone: bool) -> int:
    """Returns the number of channels to be added."""
    wide = alone and channels > 2 * _ALIGNED_WIDE
    return -channels % (_ALIGNED_WIDE if wide else _ALIGNED)


def _at_stride_one(
    x: Array, kernel: Array, *, stride: IntPair, padding: Padding
) -> Array:
    """The convolution by the phases of the field, which depend on few paddings."""
    # What is padded by a multiple of the stride is padded after the phases are apart,
    # so that all kernels of an embedding read the same array.
    taps = kernel.shape[:2]
    kernel = kernel_phases(kernel, stride)
    aligned, more = [], []
    for d, (step, (low, high)) in enumerate(zip(stride, padding, strict=True)):
        size = x.shape[1 + d]
        aligned.append((low % step, -(low + size) % step))
        read = conv_out_size(size, taps[d], step, (low, high)) + kernel.shape[d] - 1
        present = -(-(low % step + size) // step)
        more.append((low // step, read - low // step - present))
    x = space_to_depth(pad_spatial(x, aligned), stride)
    x = pad_spatial(x, [(0, min(high, 0)) for _, high in more])
    rows, columns = ((low, max(high, 0)) for low, high in more)
    return ops.conv2d(x, kernel, padding=(rows, columns))


def best_counts(kernel: Sequence[int], stride: IntPair, points: int) -> IntPair:
    """Returns the rows and columns of output points that are best computed together."""
    *taps, _, out = kernel

    def work(counts: IntPair) -> int:
        grown = (n + s * (c - 1) for n, s, c in zip(taps, stride, counts, strict=True))
        together = prod(counts)
        tiles = -(-points // (TILE * together)) * -(-out * together // TILE)
        return prod(grown) * -(-tiles // TILES)

    numbers = [2**i for i in range(_MOST.bit_length())]
    # Fields of few points fill the device once either way, and stay as they are.
    best = min(itertools.product(numbers, numbers), key=work)
    return best if work(best) <= _WORTH * work((1, 1)) else (1, 1)
