"""Three-dimensional convolution of NDHWC arrays.

Patches that do not overlap (the kernel is the stride) are a matrix product, which every
backend runs fast in both directions.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.conv import Pair, explicit_padding

Triple = tuple[int, int, int]
Padding3d = tuple[Pair, Pair, Pair]
AnyPadding3d = Padding3d | str

LAYOUT = ("NDHWC", "DHWIO", "NDHWC")
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

    Args:
        x: (batch, depth, height, width, channel_in); depth is levels or time.
        kernel: (kernel_d, kernel_h, kernel_w, channel_in / groups, channel_out):
            torch's weight with its dims in the order 2, 3, 4, 1, 0.
        stride: of depth, height and width.
        padding: zeros (low, high) of each dim, or "same" as for `ops.conv.conv2d`.
        dilation: spacing of the kernel's taps.
        groups: number of channel groups.

    Raises:
        ValueError: "same" with a stride, or another word.
    """
    pads = explicit_padding(padding, kernel.shape[:3], stride=stride, dilation=dilation)
    if kernel.shape[:3] == stride and dilation == (1, 1, 1) and groups == 1:
        widths = ((0, 0), *pads, (0, 0))
        return _patches(jnp.pad(x, widths) if any(map(any, pads)) else x, kernel)
    return lax.conv_general_dilated(
        x,
        kernel,
        stride,
        pads,
        rhs_dilation=dilation,
        dimension_numbers=LAYOUT,
        feature_group_count=groups,
    )


def _patches(x: Array, kernel: Array) -> Array:
    """Patches that touch but do not overlap; what fills no patch is left out."""
    batch, *sizes, channel_in = x.shape
    kd, kh, kw = kernel.shape[:3]
    depth, height, width = sizes[0] // kd, sizes[1] // kh, sizes[2] // kw
    x = x[:, : depth * kd, : height * kh, : width * kw]
    x = x.reshape(batch, depth, kd, height, kh, width, kw, channel_in)
    x = x.transpose(0, 1, 3, 5, 2, 4, 6, 7)
    x = x.reshape(batch, depth, height, width, -1)
    return jnp.tensordot(x, kernel.reshape(-1, kernel.shape[-1]), 1)
