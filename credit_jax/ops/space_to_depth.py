"""Padding; strided and transposed convolutions as convolutions of stride 1.

Phase p of a dim with stride s consists of the points p, p + s, p + 2 s, ... A
convolution of stride s equals a convolution of stride 1 whose input channels are all
phases of the input; a transposed convolution of stride s equals one of stride 1 whose
output channels are all phases of the output. A convolution of any stride also equals
one of n times the stride, whose output channels are n phases of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Shaped

from credit_jax.ops.dense import dense

IntPair = tuple[int, int]


def next_power_of_2(size: int) -> int:
    """Returns the smallest power of two that is at least `size`, a size from 0 on."""
    return 1 << max(size - 1, 0).bit_length()


def pad(
    x: Shaped[Array, "*shape"], widths: Sequence[IntPair], value: float = 0
) -> Shaped[Array, "*padded"]:
    """Pads every dim with `value` by (low, high); negative widths remove points."""
    if not any(low or high for low, high in widths):
        return x
    config = [(low, high, 0) for low, high in widths]
    return lax.pad(x, jnp.asarray(value, x.dtype), config)


def pad_spatial(
    x: Shaped[Array, "batch *spatial channel"], widths: Sequence[IntPair]
) -> Shaped[Array, "batch *padded channel"]:
    """Pads every spatial dim with zeros at both ends."""
    return pad(x, [(0, 0), *widths, (0, 0)])


def pad_dim(
    x: Shaped[Array, "*shape"], dim: int, width: IntPair, value: float = 0
) -> Shaped[Array, "*padded"]:
    """`pad` along one dim."""
    return pad(x, [width if d == dim else (0, 0) for d in range(x.ndim)], value)


def conv_out_size(
    size: int,
    kernel: int,
    stride: int = 1,
    padding: IntPair = (0, 0),
    dilation: int = 1,
) -> int:
    """Returns the output length of a convolution along one dim."""
    return (size + sum(padding) - dilation * (kernel - 1) - 1) // stride + 1


LAYOUTS = {2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}


def phases(x: Array, kernel: Array, stride: Sequence[int]) -> tuple[Array, Array]:
    """Returns input and kernel of the equivalent convolution of stride 1."""
    dims = range(len(stride))
    sizes = [conv_out_size(x.shape[1 + d], kernel.shape[d], stride[d]) for d in dims]
    kernel = kernel_phases(kernel, stride)
    points = [sizes[d] + kernel.shape[d] - 1 for d in dims]
    # The input is cropped to the points that are read.
    ends = [(0, points[d] * stride[d] - x.shape[1 + d]) for d in dims]
    return space_to_depth(pad_spatial(x, ends), stride), kernel


def kernel_phases(kernel: Array, stride: Sequence[int]) -> Array:
    """Returns the kernel (taps..., phases * channel_in, channel_out) of stride 1."""
    kernel, taps = split_taps(kernel, stride)
    num = len(stride)
    order = [*range(0, 2 * num, 2), *range(1, 2 * num, 2), 2 * num, 2 * num + 1]
    return kernel.transpose(order).reshape(*taps, -1, kernel.shape[-1])


def points_together(
    x: Array,
    kernel: Array,
    stride: Sequence[int],
    padding: Sequence[IntPair],
    counts: Sequence[int],  # number of points of every spatial dim
    conv: Callable[..., Array],  # takes stride and padding by name
) -> Array:
    """Convolution that computes several neighboring output points as one."""
    num = len(counts)
    sizes, ends = [0] * num, [(0, 0)] * num
    # The gradient of a narrow kernel is rounded once more, not in each sum.
    dtype = kernel.dtype
    kernel = kernel.astype(jnp.promote_types(dtype, jnp.float32))
    # The points of the first dim come to be outermost among the output channels.
    for d in reversed(range(num)):
        step, count, (low, high) = stride[d], counts[d], padding[d]
        size, taps = x.shape[1 + d], kernel.shape[d]
        sizes[d] = conv_out_size(size, taps, step, (low, high))
        last = step * (count - 1)
        reach = (-(-sizes[d] // count) - 1) * step * count + taps + last
        ends[d] = low, max(high, reach - size - low)
        # The output channels of the points follow one another; the kernel of each is
        # shifted and padded with zeros.
        shifts = [(step * i, last - step * i) for i in range(count)]
        none = [(0, 0)] * kernel.ndim
        kernel = jnp.concatenate(
            [pad(kernel, [*none[:d], shift, *none[d + 1 :]]) for shift in shifts], -1
        )
    steps = tuple(s * c for s, c in zip(stride, counts, strict=True))
    y = conv(x, kernel.astype(dtype), stride=steps, padding=tuple(ends))
    y = depth_to_space(y, counts, 1)
    return y[(slice(None), *(slice(size) for size in sizes))]


def dense_taps(
    kernel: Array, stride: Sequence[int], dilation: Sequence[int]
) -> tuple[Array, tuple[int, ...]]:
    """A kernel with zeros between taps of strided dims, and the remaining dilation."""
    filled = [s > 1 and d > 1 for s, d in zip(stride, dilation, strict=True)]
    left = tuple(1 if f else d for f, d in zip(filled, dilation, strict=True))
    if not any(filled):
        return kernel, left
    between = [d - 1 if f else 0 for f, d in zip(filled, dilation, strict=True)]
    widths = [(0, 0, zeros) for zeros in (*between, 0, 0)]
    return lax.pad(kernel, jnp.zeros((), kernel.dtype), widths), left


def split_taps(kernel: Array, stride: Sequence[int]) -> tuple[Array, list[int]]:
    """Splits spatial dims of a kernel into (taps of a phase, phases); counts taps."""
    *sizes, first, second = kernel.shape
    taps = [-(-size // s) for size, s in zip(sizes, stride, strict=True)]
    missing = [t * s - n for t, s, n in zip(taps, stride, sizes, strict=True)]
    kernel = pad(kernel, [(0, more) for more in (*missing, 0, 0)])
    split = [n for pair in zip(taps, stride, strict=True) for n in pair]
    # Tap t * stride + p of the kernel is tap t of phase p; missing last ones are zeros.
    return kernel.reshape(*split, first, second), taps


def space_to_depth(x: Array, stride: Sequence[int]) -> Array:
    """Moves phases to channels, in the order (phases, channels)."""
    num = len(stride)
    batch, *sizes, channels = x.shape
    points = [n // s for n, s in zip(sizes, stride, strict=True)]
    split = [n for pair in zip(points, stride, strict=True) for n in pair]
    x = x.reshape(batch, *split, channels)
    order = [0, *range(1, 2 * num, 2), *range(2, 2 * num + 1, 2), 2 * num + 1]
    return x.transpose(order).reshape(batch, *points, channels * prod(stride))


def depth_to_space(x: Array, stride: Sequence[int], groups: int) -> Array:
    """Moves phases from channels (group, phases, channels of a group) to space."""
    num = len(stride)
    batch, *points, channels = x.shape
    per_group = channels // groups // prod(stride)
    x = x.reshape(batch, *points, groups, *stride, per_group)
    pairs = [dim for d in range(num) for dim in (1 + d, 2 + num + d)]
    x = x.transpose(0, *pairs, 1 + num, 2 + 2 * num)
    sizes = [n * s for n, s in zip(points, stride, strict=True)]
    return x.reshape(batch, *sizes, groups * per_group)


def pixel_shuffle(
    x: Float[Array, "batch height width channels"], scale: int
) -> Float[Array, "batch height_out width_out channel_out"]:
    """Moves channels to space, as torch.nn.PixelShuffle."""
    # out[b, h * r + i, w * r + j, c] = x[b, h, w, c * r * r + i * r + j], r the scale.
    return depth_to_space(x, (scale, scale), x.shape[-1] // scale**2)


def unpatch(
    x: Float[Array, "batch height width channels"], patch: IntPair
) -> Float[Array, "batch height_out width_out channel_out"]:
    """Rearranges the vector of each point to a patch, as heads of FuXi and Swin do."""
    # Of p rows and q columns:
    # out[b, h * p + i, w * q + j, c] = x[b, h, w, (i * q + j) * channel_out + c].
    return depth_to_space(x, patch, 1)


def unit_stride_conv(
    x: Array, kernel: Array, *, dilation: Sequence[int], groups: int
) -> Array:
    """Convolution of stride 1 without padding; a single tap is a matrix product."""
    sizes = kernel.shape[:-2]
    if prod(sizes) == 1 and groups == 1:
        return dense(x, kernel.reshape(kernel.shape[-2:]))
    return plain_conv(x, kernel, (1,) * len(sizes), "VALID", dilation, groups)


def plain_conv(
    x: Array,
    kernel: Array,
    stride: Sequence[int],
    padding: Sequence[IntPair] | str,
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """XLA's convolution of channels-last arrays with two or three spatial dims."""
    return lax.conv_general_dilated(
        x,
        kernel,
        stride,
        padding,
        rhs_dilation=dilation,
        dimension_numbers=LAYOUTS[len(stride)],
        feature_group_count=groups,
    )
