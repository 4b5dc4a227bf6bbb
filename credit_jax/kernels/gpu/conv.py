"""Two-dimensional convolutions of 16-bit fields with few or odd numbers of channels.

Libraries multiply tiles of 128 output channels, whatever part of a tile is used, and
copy fields whose channels are no multiple of `_ALIGNED`. On an H200 the largest kernels
of WXFormer's embedding, with 16 output channels, ran at an eighth of the rate of others
and took a quarter of a training step (docs/gpu_kernels.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from math import prod

from jaxtyping import Array, Float

from credit_jax import ops
from credit_jax.kernels.gpu.call import cdiv
from credit_jax.kernels.gpu.groups import TILE, TILES
from credit_jax.ops.conv import (
    NO_PADDING,
    AnyPadding,
    Padding,
    checked_padding,
    conv_out_size,
)
from credit_jax.ops.padding import Pair, pad, pad_spatial
from credit_jax.ops.space_to_depth import phases, points_together

# The multiple of channels that tensor cores take.
_ALIGNED = 8
# Most output points of a dim that are computed together.
_MOST = 8
# Points are computed together if the work shrinks at least to this fraction.
_WORTH = 0.8


def conv2d(
    x: Float[Array, "batch height width channel_in"],
    kernel: Float[Array, "kernel_h kernel_w group_in channel_out"],
    *,
    stride: Pair = (1, 1),
    padding: AnyPadding = NO_PADDING,
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Float[Array, "batch height_out width_out channel_out"]:
    """`ops.conv2d`, with as many channels as tensor cores like.

    With few output channels a tile holds those of several neighboring points, whose
    kernels are shifted and padded with zeros; the convolution is then one of stride 1
    whose input channels are the phases of the field.
    """
    conv = partial(ops.conv2d, dilation=dilation, groups=groups)
    if groups != 1:
        return conv(x, kernel, stride=stride, padding=padding)
    pads = checked_padding(
        x.shape[1:-1], kernel.shape[:2], padding, stride=stride, dilation=dilation
    )
    out, missing = kernel.shape[3], -x.shape[3] % _ALIGNED
    x = pad(x, ((0, 0), (0, 0), (0, 0), (0, missing)))
    kernel = pad(kernel, ((0, 0), (0, 0), (0, missing), (0, -out % _ALIGNED)))
    sizes = (
        conv_out_size(x.shape[1 + d], kernel.shape[d], stride[d], pads[d])
        for d in (0, 1)
    )
    counts = best_counts(kernel.shape, stride, len(x) * prod(sizes))
    if counts == (1, 1) or dilation != (1, 1):
        y = conv(x, kernel, stride=stride, padding=(pads[0], pads[1]))
    else:
        y = points_together(x, kernel, stride, pads, counts, _at_stride_one)
    return y[..., :out]


def _at_stride_one(x: Array, kernel: Array, *, stride: Pair, padding: Padding) -> Array:
    x, kernel, _ = phases(pad_spatial(x, padding), kernel, stride, (1, 1), 1)
    return ops.conv2d(x, kernel)


def best_counts(kernel: Sequence[int], stride: Pair, points: int) -> Pair:
    """Returns the rows and columns of output points that are best computed together.

    Fields of few points fill the device once either way, and stay as they are.

    Args:
        kernel: (kernel_h, kernel_w, channel_in, channel_out).
        stride: stride of height and width.
        points: number of output points.

    >>> best_counts((32, 32, 80, 16), (2, 2), 400 * 720)
    (2, 4)
    >>> best_counts((32, 32, 80, 16), (2, 2), 100 * 100)
    (1, 1)
    """
    *taps, _, out = kernel

    def work(counts: Pair) -> int:
        grown = (n + s * (c - 1) for n, s, c in zip(taps, stride, counts, strict=True))
        together = prod(counts)
        tiles = cdiv(points, TILE * together) * cdiv(out * together, TILE)
        return prod(grown) * cdiv(tiles, TILES)

    numbers = [2**i for i in range(_MOST.bit_length())]
    best = min(itertools.product(numbers, numbers), key=work)
    return best if work(best) <= _WORTH * work((1, 1)) else (1, 1)
