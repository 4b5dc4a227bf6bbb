"""Three-dimensional convolution of NDHWC arrays."""

from __future__ import annotations

from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.conv import checked_padding
from credit_jax.ops.padding import Pair, pad_spatial
from credit_jax.ops.space_to_depth import LAYOUTS, space_to_depth_conv

Triple = tuple[int, int, int]
Padding3d = tuple[Pair, Pair, Pair]
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
