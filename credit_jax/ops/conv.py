"""Convolutions of channels-last arrays in two and three dims, and periodic ones."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.padding import IntPair, pad_spatial
from credit_jax.ops.space_to_depth import LAYOUTS, space_to_depth_conv

Padding = tuple[IntPair, IntPair]
AnyPadding = Padding | str

LAYOUT = ("NHWC", "HWIO", "NHWC")
NO_PADDING: Padding = ((0, 0), (0, 0))


def conv2d(
    x: Float[Array, "batch height width channel_in"],
    kernel: Float[Array, "kernel_h kernel_w group_in channel_out"],
    *,
    stride: IntPair = (1, 1),
    padding: AnyPadding = NO_PADDING,
    dilation: IntPair = (1, 1),
    groups: int = 1,
) -> Float[Array, "batch height_out width_out channel_out"]:
    """Cross-correlation, as torch.nn.functional.conv2d.

    out = (size + low + high - dilation * (kernel - 1) - 1) // stride + 1

    Args:
        x: (batch, height, width, channel_in).
        kernel: (kernel_h, kernel_w, channel_in / groups, channel_out).
        stride: stride of height and width.
        padding: number of zero rows (low, high) and zero columns (low, high); or
            "same" as in torch: the output has the size of the input, an odd zero goes
            to the end, and the stride must be 1.
        dilation: spacing of the kernel's taps.
        groups: number of channel groups.

    Raises:
        ValueError: "same" with a stride above 1, an unknown string, or a kernel larger
            than the padded input.
    """
    pads = checked_padding(
        x.shape[1:-1], kernel.shape[:2], padding, stride=stride, dilation=dilation
    )
    return lax.conv_general_dilated(
        x,
        kernel,
        stride,
        pads,
        rhs_dilation=dilation,
        dimension_numbers=LAYOUT,
        feature_group_count=groups,
    )


def explicit_padding(
    padding: Sequence[IntPair] | str,
    kernel: Sequence[int],
    *,
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[IntPair, ...]:
    """Returns the number of zeros (low, high) for each spatial dim.

    "same" gives dilation * (kernel - 1) zeros in total, the smaller half in front.

    Args:
        padding: a pair for each spatial dim, or "same".
        kernel, stride, dilation: kernel, stride and dilation of each spatial dim.

    Raises:
        ValueError: "same" with a stride above 1, as in torch, or an unknown string.
    """
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
    return tuple(
        padding_of_same(size, spacing)
        for size, spacing in zip(kernel, dilation, strict=True)
    )


def padding_of_same(kernel: int, dilation: int = 1) -> IntPair:
    """Returns the zeros (low, high) that keep the length at stride 1.

    They are dilation * (kernel - 1) in total.

    >>> padding_of_same(4)
    (1, 2)
    """
    total = dilation * (kernel - 1)
    return total // 2, total - total // 2


def checked_padding(
    sizes: Sequence[int],
    kernel: Sequence[int],
    padding: Sequence[IntPair] | str,
    *,
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[IntPair, ...]:
    """Returns `explicit_padding` of a convolution that has at least one output.

    Args:
        sizes: size of each spatial dim of the array.
        kernel, padding, stride, dilation: see `explicit_padding`.

    Raises:
        ValueError: see `explicit_padding`, or the dilated kernel is larger than the
            padded array.
    """
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
    """Cross-correlation, as torch.nn.functional.conv3d.

    out = (size + low + high - dilation * (kernel - 1) - 1) // stride + 1

    If the kernel size equals the stride (patches), it is computed as one matrix
    product.

    Args:
        x: (batch, depth, height, width, channel_in); depth is levels or time.
        kernel: (kernel_d, kernel_h, kernel_w, channel_in / groups, channel_out):
            torch's weight with its dims in the order 2, 3, 4, 1, 0.
        stride: stride of depth, height and width.
        padding: number of zeros (low, high) of each spatial dim, or "same" as for
            `ops.conv.conv2d`.
        dilation: spacing of the kernel's taps.
        groups: number of channel groups.

    Raises:
        ValueError: "same" with a stride above 1, an unknown string, or a kernel larger
            than the padded input.
    """
    pads = checked_padding(
        x.shape[1:-1], kernel.shape[:3], padding, stride=stride, dilation=dilation
    )
    if kernel.shape[:3] == stride and dilation == (1, 1, 1) and groups == 1:
        return space_to_depth_conv(pad_spatial(x, pads), kernel, stride=stride)
    return lax.conv_general_dilated(
        x,
        kernel,
        stride,
        pads,
        rhs_dilation=dilation,
        dimension_numbers=LAYOUTS[3],
        feature_group_count=groups,
    )


LAT, LON = 1, 2


def periodic_conv2d(
    x: Float[Array, "batch lat lon channel_in"],
    kernel: Float[Array, "kernel_h kernel_w channel_in channel_out"],
    *,
    padding: int = 1,
) -> Float[Array, "batch lat_out lon_out channel_out"]:
    """Pads longitude periodically and latitude by reflection, then convolves.

    The reflection does not repeat the row at the pole: row -1 is row 1. The convolution
    adds no zeros. The two paddings commute, so the corners are well defined.

    Args:
        x: (batch, lat, lon, channel_in).
        kernel: (kernel_h, kernel_w, channel_in, channel_out).
        padding: rows and columns to add on every side; (kernel - 1) / 2 keeps the size.

    Returns:
        (batch, lat + 2 * padding - kernel_h + 1, lon + 2 * padding - kernel_w + 1,
        channel_out).

    Raises:
        ValueError: negative padding, or more padding than lat - 1 rows or lon columns.
    """
    check_periodic(padding, x.shape[LAT], x.shape[LON])
    for dim in (LON, LAT):
        x = pad_periodic(x, padding, dim)
    return conv2d(x, kernel)


def pad_periodic(
    x: Float[Array, "batch lat lon channel"], padding: int, dim: int
) -> Float[Array, "batch lat_out lon_out channel"]:
    """The padding of `periodic_conv2d` along one dim.

    Args:
        x: (batch, lat, lon, channel).
        padding: rows or columns to add at both ends.
        dim: 1 to reflect latitude, or 2 to wrap longitude.
    """
    widths = [(padding, padding) if d == dim else (0, 0) for d in range(x.ndim)]
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
