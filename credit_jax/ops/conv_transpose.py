"""Transposed convolutions of NHWC and NDHWC arrays.

Each is computed as a convolution of stride 1 to all phases of the output
(`ops.space_to_depth`), followed by depth-to-space. If the kernel size equals the
stride, the convolution is one matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.conv import NO_PADDING, NO_PADDING_3D, Padding, Padding3d, Triple
from credit_jax.ops.padding import IntPair, pad_spatial
from credit_jax.ops.space_to_depth import (
    dense_taps,
    depth_to_space,
    split_taps,
    unit_stride_conv,
)


def conv_transpose2d(
    x: Float[Array, "batch height width channel_in"],
    kernel: Float[Array, "kernel_h kernel_w channel_in group_out"],
    *,
    stride: IntPair = (1, 1),
    padding: Padding = NO_PADDING,
    output_padding: IntPair = (0, 0),
    dilation: IntPair = (1, 1),
    groups: int = 1,
) -> Float[Array, "batch height_out width_out channel_out"]:
    """The transpose of `conv2d`, as torch.nn.functional.conv_transpose2d.

    out = (size - 1) * stride - low - high + dilation * (kernel - 1) + 1
        + output_padding

    Args:
        x: (batch, height, width, channel_in).
        kernel: (kernel_h, kernel_w, channel_in, channel_out / groups): torch's weight
            with its dims in the order 2, 3, 0, 1.
        stride: stride of height and width.
        padding: rows (low, high) and columns (low, high) removed from the output;
            torch's `padding=p` is ((p, p), (p, p)).
        output_padding: additional rows and columns at the end; each less than the
            stride or the dilation.
        dilation: spacing of the kernel's taps.
        groups: number of channel groups.

    Raises:
        ValueError: negative padding, too large an output padding, or an empty output.
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
    padding: IntPair = (0, 0),
    output_padding: int = 0,
    dilation: int = 1,
) -> int:
    """Returns the output length of a transposed convolution along one dim.

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
    padding: IntPair,
    output_padding: int,
    dilation: int,
) -> int:
    """Returns the output length along one dim after checking the arguments.

    Raises:
        ValueError: invalid padding, or an empty output.
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
    padding: Sequence[IntPair],
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
    kernel, spacing = dense_taps(kernel, stride, dilation)
    # The kernel that computes all phases, with its taps in reversed order. Its shape is
    # (taps..., group_in, groups * phases * group_out).
    num, channel_in = len(stride), kernel.shape[-2]
    kernel, taps = split_taps(kernel, stride)
    group_in = channel_in // groups
    kernel = kernel.reshape(*kernel.shape[:-2], groups, group_in, kernel.shape[-1])
    order = [*range(0, 2 * num, 2), 2 * num + 1, 2 * num]
    order += [*range(1, 2 * num, 2), 2 * num + 2]
    kernel = jnp.flip(kernel.transpose(order), range(num))
    phases = kernel.reshape(*taps, group_in, -1)
    # Output o (before cropping) is phase o % stride of point o // stride; the points
    # first to last are needed.
    first = [padding[d][0] // stride[d] for d in spatial]
    last = [(padding[d][0] + out[d] - 1) // stride[d] for d in spatial]
    reach = [spacing[d] * (phases.shape[d] - 1) for d in spatial]
    ends = [(reach[d] - first[d], last[d] + 1 - x.shape[1 + d]) for d in spatial]
    y = unit_stride_conv(pad_spatial(x, ends), phases, dilation=spacing, groups=groups)
    y = depth_to_space(y, stride, groups)
    for d in spatial:
        start = padding[d][0] - first[d] * stride[d]
        y = lax.slice_in_dim(y, start, start + out[d], axis=1 + d)
    return y
