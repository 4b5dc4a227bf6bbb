"""Convolutions of channels-last arrays, periodic and transposed ones too.

Each is computed as a convolution of stride 1 to all phases of the output
(`ops.space_to_depth`), followed by depth-to-space. If the kernel size equals the
stride, the convolution is one matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.space_to_depth import (
    IntPair,
    dense_taps,
    depth_to_space,
    pad_spatial,
    phases,
    plain_conv,
    split_taps,
    unit_stride_conv,
)

Padding = tuple[IntPair, IntPair]
AnyPadding = Padding | str

NO_PADDING: Padding = ((0, 0), (0, 0))


def conv2d(
    x: Float[Array, "batch height width channel_in"],
    kernel: Float[Array, "kernel_h kernel_w group_in channel_out"],
    *,
    stride: IntPair = (1, 1),
    padding: AnyPadding = NO_PADDING,  # zeros (low, high) of each dim, or "same"
    dilation: IntPair = (1, 1),
    groups: int = 1,
) -> Float[Array, "batch height_out width_out channel_out"]:
    """Cross-correlation with zero padding, as torch.nn.functional.conv2d."""
    pads = checked_padding(
        x.shape[1:-1], kernel.shape[:2], padding, stride=stride, dilation=dilation
    )
    return plain_conv(x, kernel, stride, pads, dilation, groups)


def explicit_padding(
    padding: Sequence[IntPair] | str,
    kernel: Sequence[int],
    *,
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[IntPair, ...]:
    """Returns the number of zeros (low, high) for each spatial dim."""
    if not isinstance(padding, str):
        return tuple(padding)
    if padding != "same":
        raise ValueError(
            f"padding is {padding!r}; expected 'same', or a pair (low, high) for each "
            f"of the {len(kernel)} spatial dims"
        )
    if any(step != 1 for step in stride):
        raise ValueError(
            f"padding is 'same' and stride {tuple(stride)}; 'same' needs stride 1. For "
            "a strided convolution give a pair (low, high) for each spatial dim"
        )
    totals = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    # The output has the size of the input; an odd zero goes to the end, as in torch.
    return tuple((total // 2, total - total // 2) for total in totals)


def checked_padding(
    sizes: Sequence[int],
    kernel: Sequence[int],
    padding: Sequence[IntPair] | str,
    *,
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[IntPair, ...]:
    """Returns `explicit_padding` of a convolution that has at least one output."""
    pads = explicit_padding(padding, kernel, stride=stride, dilation=dilation)
    for i, (size, taps) in enumerate(zip(sizes, kernel, strict=True)):
        reach = dilation[i] * (taps - 1) + 1
        if size + sum(pads[i]) < reach:
            raise ValueError(
                f"the kernel reaches over {reach} points of spatial dim {i}, but there "
                f"are {size} and {pads[i][0]} + {pads[i][1]} of padding; add "
                "padding or make the kernel smaller"
            )
    return pads


Triple = tuple[int, int, int]
Padding3d = tuple[IntPair, IntPair, IntPair]
AnyPadding3d = Padding3d | str

NO_PADDING_3D: Padding3d = ((0, 0), (0, 0), (0, 0))


def conv3d(
    x: Float[Array, "batch depth height width channel_in"],
    kernel: Float[Array, "kernel_d kernel_h kernel_w group_in channel_out"],
    *,
    stride: Triple = (1, 1, 1),
    padding: AnyPadding3d = NO_PADDING_3D,
    dilation: Triple = (1, 1, 1),
    groups: int = 1,
) -> Float[Array, "batch depth_out height_out width_out channel_out"]:
    """Cross-correlation, as torch.nn.functional.conv3d; depth is levels or time."""
    pads = checked_padding(
        x.shape[1:-1], kernel.shape[:3], padding, stride=stride, dilation=dilation
    )
    # Patches, whose kernel size is the stride, take one matrix product.
    if kernel.shape[:3] == stride and dilation == (1, 1, 1) and groups == 1:
        x, kernel = phases(pad_spatial(x, pads), kernel, stride)
        return unit_stride_conv(x, kernel, dilation=dilation, groups=groups)
    return plain_conv(x, kernel, stride, pads, dilation, groups)


LAT, LON = 1, 2


def pad_periodic(
    x: Float[Array, "batch lat lon channel"], padding: int, dim: int
) -> Float[Array, "batch lat_out lon_out channel"]:
    """Pads longitude periodically, or latitude by reflection: `dim` is LAT or LON."""
    widths = [(padding, padding) if d == dim else (0, 0) for d in range(x.ndim)]
    # The reflection does not repeat the row at the pole: row -1 is row 1.
    mode = "reflect" if dim == LAT else "wrap"
    return jnp.pad(x, widths, mode=mode) if padding else x


def check_periodic(padding: int, rows: int, columns: int) -> None:
    """Raises ValueError if the field has too few rows or columns for the padding."""
    most = min(rows - 1, columns)
    if not 0 <= padding <= most:
        raise ValueError(
            f"padding is {padding}; {rows} rows and {columns} columns can be padded "
            f"with 0 to {most}: latitude is mirrored without the pole row, longitude "
            "goes around once"
        )


def check_transposed(
    size: int,
    kernel: int,
    *,
    stride: int,
    padding: IntPair,
    output_padding: int,
    dilation: int,
) -> int:
    """Returns the output length along one dim after checking the arguments."""
    if min(padding) < 0:
        raise ValueError(
            f"padding is {padding}; the rows that are cut off cannot be negative"
        )
    if not 0 <= output_padding < max(stride, dilation):
        raise ValueError(
            f"output_padding is {output_padding}; expected 0 to "
            f"{max(stride, dilation) - 1}: below stride {stride} or dilation {dilation}"
        )
    full = (size - 1) * stride + dilation * (kernel - 1) + 1
    out = full - sum(padding) + output_padding
    if out < 1:
        raise ValueError(
            f"{size} points make {out + sum(padding)}, of which padding {padding} cuts "
            "off all; make the padding smaller"
        )
    return out


def conv_transpose(
    x: Float[Array, "batch *sizes channel_in"],
    kernel: Float[Array, "*taps channel_in group_out"],
    *,
    stride: Sequence[int] | None = None,
    padding: Sequence[IntPair] | None = None,  # cut off the output: torch's p is (p, p)
    output_padding: Sequence[int] | None = None,  # added at the end
    dilation: Sequence[int] | None = None,
    groups: int = 1,
) -> Float[Array, "batch *sizes_out channel_out"]:
    """Transpose of `conv2d` or `conv3d`, as torch.nn.functional.conv_transpose2d."""
    dims = kernel.ndim - 2
    stride, dilation = stride or (1,) * dims, dilation or (1,) * dims
    padding = padding or ((0, 0),) * dims
    output_padding = output_padding or (0,) * dims
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
    kernel = kernel.reshape(*taps, group_in, -1)
    # Output o (before cropping) is phase o % stride of point o // stride; the points
    # first to last are needed.
    first = [padding[d][0] // stride[d] for d in spatial]
    last = [(padding[d][0] + out[d] - 1) // stride[d] for d in spatial]
    reach = [spacing[d] * (kernel.shape[d] - 1) for d in spatial]
    ends = [(reach[d] - first[d], last[d] + 1 - x.shape[1 + d]) for d in spatial]
    y = unit_stride_conv(pad_spatial(x, ends), kernel, dilation=spacing, groups=groups)
    y = depth_to_space(y, stride, groups)
    for d in spatial:
        start = padding[d][0] - first[d] * stride[d]
        y = lax.slice_in_dim(y, start, start + out[d], axis=1 + d)
    return y
