"""Transposed convolutions of NHWC and NDHWC arrays.

A transposed convolution of stride s is a convolution of stride 1 that makes s outputs
for every input point (the *phases*), which then lie next to one another. No zeros are
put between input points, so the forward and both gradients are dense and fast on every
backend; where the kernel is the stride they are one matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops import conv, conv3d
from credit_jax.ops.conv import NO_PADDING, Padding, Pair
from credit_jax.ops.conv3d import NO_PADDING_3D, Padding3d, Triple

LAYOUTS = {2: conv.LAYOUT, 3: conv3d.LAYOUT}


def conv_transpose2d(
    x: Float[Array, "batch height width channel_in"],
    kernel: Float[Array, "kernel_h kernel_w channel_in group_out"],
    *,
    stride: Pair = (1, 1),
    padding: Padding = NO_PADDING,
    output_padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Float[Array, "batch height_out width_out channel_out"]:
    """The transpose of `conv2d`, as torch.nn.functional.conv_transpose2d.

    out = (size - 1) * stride - low - high + dilation * (kernel - 1) + 1
        + output_padding

    Args:
        x: (batch, height, width, channel_in).
        kernel: (kernel_h, kernel_w, channel_in, channel_out / groups): torch's weight
            with its dims in the order 2, 3, 0, 1.
        stride: of height and width.
        padding: rows (low, high) and columns (low, high) that are cut off; torch's
            `padding=p` is ((p, p), (p, p)).
        output_padding: rows and columns more at the end; below stride or dilation.
        dilation: spacing of the kernel's taps.
        groups: number of channel groups.

    Raises:
        ValueError: negative padding, too large an output padding, or nothing is left.
    """
    return _conv_transpose(
        x,
        kernel,
        stride=stride,
        padding=padding,
        output_padding=output_padding,
        dilation=dilation,
        groups=groups,
    )


def conv_transpose3d(
    x: Float[Array, "batch depth height width channel_in"],
    kernel: Float[Array, "kernel_d kernel_h kernel_w channel_in group_out"],
    *,
    stride: Triple = (1, 1, 1),
    padding: Padding3d = NO_PADDING_3D,
    output_padding: Triple = (0, 0, 0),
    dilation: Triple = (1, 1, 1),
    groups: int = 1,
) -> Float[Array, "batch depth_out height_out width_out channel_out"]:
    """The transpose of `conv3d`, as torch.nn.functional.conv_transpose3d.

    Args:
        x: (batch, depth, height, width, channel_in).
        kernel: (kernel_d, kernel_h, kernel_w, channel_in, channel_out / groups):
            torch's weight with its dims in the order 2, 3, 4, 0, 1.
        stride, padding, output_padding, dilation, groups: as for `conv_transpose2d`.

    Raises:
        ValueError: as for `conv_transpose2d`.
    """
    return _conv_transpose(
        x,
        kernel,
        stride=stride,
        padding=padding,
        output_padding=output_padding,
        dilation=dilation,
        groups=groups,
    )


def conv_transpose_out_size(
    size: int,
    kernel: int,
    stride: int = 1,
    padding: Pair = (0, 0),
    output_padding: int = 0,
    dilation: int = 1,
) -> int:
    """Output length along one dim.

    >>> conv_transpose_out_size(45, 4, 2, (1, 1))
    90
    """
    full = (size - 1) * stride + dilation * (kernel - 1) + 1
    return full - sum(padding) + output_padding


def check_transposed(
    size: int,
    kernel: int,
    *,
    stride: int,
    padding: Pair,
    output_padding: int,
    dilation: int,
) -> int:
    """The output length along one dim, at least 1.

    Raises:
        ValueError: the arguments make no transposed convolution.
    """
    if min(padding) < 0:
        raise ValueError(
            f"padding is {padding}; the rows that are cut off cannot be negative"
        )
    if not 0 <= output_padding < max(stride, dilation):
        raise ValueError(
            f"output_padding is {output_padding}; expected 0 to "
            f"{max(stride, dilation) - 1}: below stride {stride} or dilation {dilation}"
        )
    out = conv_transpose_out_size(
        size, kernel, stride, padding, output_padding, dilation
    )
    if out < 1:
        raise ValueError(
            f"{size} points make {out + sum(padding)}, of which padding {padding} cuts "
            "off all; make the padding smaller"
        )
    return out


def _conv_transpose(
    x: Array,
    kernel: Array,
    *,
    stride: Sequence[int],
    padding: Sequence[Pair],
    output_padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    spatial = range(len(stride))
    out = [
        check_transposed(
            x.shape[1 + d],
            kernel.shape[d],
            stride=stride[d],
            padding=padding[d],
            output_padding=output_padding[d],
            dilation=dilation[d],
        )
        for d in spatial
    ]
    kernel, spacing = _dense_taps(kernel, stride, dilation)
    phases = _phase_kernel(kernel, stride, groups)
    # Output o of dim d is phase o % stride of point o // stride: from first to last.
    first = [padding[d][0] // stride[d] for d in spatial]
    last = [(padding[d][0] + out[d] - 1) // stride[d] for d in spatial]
    reach = [spacing[d] * (phases.shape[d] - 1) for d in spatial]
    ends = [(reach[d] - first[d], last[d] + 1 - x.shape[1 + d]) for d in spatial]
    y = _convolve(x, phases, ends, spacing, groups)
    y = _interleave(y, stride, groups)
    for d in spatial:
        start = padding[d][0] - first[d] * stride[d]
        y = lax.slice_in_dim(y, start, start + out[d], axis=1 + d)
    return y


def _dense_taps(
    kernel: Array, stride: Sequence[int], dilation: Sequence[int]
) -> tuple[Array, list[int]]:
    """Zeros between dilated taps of dims with a stride; the dilation that is left."""
    wide = [s > 1 and d > 1 for s, d in zip(stride, dilation, strict=True)]
    if not any(wide):
        return kernel, list(dilation)
    pairs = list(zip(wide, dilation, strict=True))
    between = [(0, 0, d - 1 if w else 0) for w, d in pairs]
    zero = jnp.zeros((), kernel.dtype)
    kernel = lax.pad(kernel, zero, [*between, (0, 0, 0), (0, 0, 0)])
    return kernel, [1 if w else d for w, d in pairs]


def _phase_kernel(kernel: Array, stride: Sequence[int], groups: int) -> Array:
    """The kernel of all phases at once: (taps, ..., group_in, groups * phases * out).

    Tap t * stride + p of the kernel is tap t of phase p; taps come in reversed order.
    """
    *sizes, channel_in, group_out = kernel.shape
    num = len(sizes)
    taps = [-(-size // s) for size, s in zip(sizes, stride, strict=True)]
    missing = [(0, t * s - n) for t, s, n in zip(taps, stride, sizes, strict=True)]
    if any(map(any, missing)):
        kernel = jnp.pad(kernel, [*missing, (0, 0), (0, 0)])
    split = [n for pair in zip(taps, stride, strict=True) for n in pair]
    kernel = kernel.reshape(*split, groups, channel_in // groups, group_out)
    order = [*range(0, 2 * num, 2), 2 * num + 1, 2 * num]
    order += [*range(1, 2 * num, 2), 2 * num + 2]
    kernel = jnp.flip(kernel.transpose(order), range(num))
    return kernel.reshape(*taps, channel_in // groups, -1)


def _convolve(
    x: Array,
    kernel: Array,
    ends: Sequence[Pair],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """Stride 1; `ends` (low, high) are zeros to add, or points to leave out if < 0."""
    sizes = kernel.shape[:-2]
    if prod(sizes) > 1 or groups > 1:
        return lax.conv_general_dilated(
            x,
            kernel,
            (1,) * len(sizes),
            ends,
            rhs_dilation=dilation,
            dimension_numbers=LAYOUTS[len(sizes)],
            feature_group_count=groups,
        )
    zero = jnp.zeros((), x.dtype)
    widths = [(low, high, 0) for low, high in ends]
    if any(low or high for low, high in ends):
        x = lax.pad(x, zero, [(0, 0, 0), *widths, (0, 0, 0)])
    return jnp.tensordot(x, kernel.reshape(kernel.shape[-2:]), 1)


def _interleave(y: Array, stride: Sequence[int], groups: int) -> Array:
    """Phases, which lie in channels (group, phases, out), to where they belong."""
    num = len(stride)
    batch, *sizes, channels = y.shape
    per_group = channels // groups // prod(stride)
    y = y.reshape(batch, *sizes, groups, *stride, per_group)
    order = [0]
    for d in range(num):
        order += [1 + d, 2 + num + d]
    y = y.transpose(*order, 1 + num, 2 + 2 * num)
    sizes = [n * s for n, s in zip(sizes, stride, strict=True)]
    return y.reshape(batch, *sizes, groups * per_group)
