"""Three-dimensional convolution of NDHWC arrays.

With a stride it runs on CPU after space-to-depth, whose gradients are faster there.
Where the kernel is the stride (patches) that is a matrix product on every backend.
"""

from __future__ import annotations

from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.backend import on_cpu
from credit_jax.ops.conv import (
    Pair,
    check_kernel_fits,
    conv_out_size,
    explicit_padding,
)
from credit_jax.ops.space_to_depth import (
    LAYOUTS,
    dense_taps,
    fit,
    space_to_depth,
    split_taps,
    unit_stride_conv,
)

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

    Args:
        x: (batch, depth, height, width, channel_in); depth is levels or time.
        kernel: (kernel_d, kernel_h, kernel_w, channel_in / groups, channel_out):
            torch's weight with its dims in the order 2, 3, 4, 1, 0.
        stride: of depth, height and width.
        padding: zeros (low, high) of each dim, or "same" as for `ops.conv.conv2d`.
        dilation: spacing of the kernel's taps.
        groups: number of channel groups.

    Raises:
        ValueError: "same" with a stride, another word, or too large a kernel.
    """
    pads = explicit_padding(padding, kernel.shape[:3], stride=stride, dilation=dilation)
    check_kernel_fits(x.shape[1:4], kernel.shape[:3], padding=pads, dilation=dilation)
    patches = kernel.shape[:3] == stride and dilation == (1, 1, 1) and groups == 1
    if patches or (stride != (1, 1, 1) and on_cpu()):
        x = fit(x, [(0, 0), *pads, (0, 0)])
        return _phased(x, kernel, stride=stride, dilation=dilation, groups=groups)
    return lax.conv_general_dilated(
        x,
        kernel,
        stride,
        pads,
        rhs_dilation=dilation,
        dimension_numbers=LAYOUTS[3],
        feature_group_count=groups,
    )


def _phased(
    x: Array, kernel: Array, *, stride: Triple, dilation: Triple, groups: int
) -> Array:
    """The convolution from all phases of the input, with stride 1."""
    kernel, spacing = dense_taps(kernel, stride, dilation)
    sizes = [
        conv_out_size(x.shape[1 + d], kernel.shape[d], stride[d], (0, 0), spacing[d])
        for d in range(3)
    ]
    kernel, taps = split_taps(kernel, stride)
    kernel = kernel.transpose(0, 2, 4, 1, 3, 5, 6, 7)
    kernel = kernel.reshape(*taps, -1, kernel.shape[-1])
    points = [sizes[d] + spacing[d] * (taps[d] - 1) for d in range(3)]
    ends = [(0, points[d] * stride[d] - x.shape[1 + d]) for d in range(3)]
    x = space_to_depth(fit(x, [(0, 0), *ends, (0, 0)]), stride, groups)
    return unit_stride_conv(x, kernel, dilation=spacing, groups=groups)
