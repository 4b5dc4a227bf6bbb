"""Two-dimensional convolution of NHWC arrays, and the arithmetic of sizes."""

from __future__ import annotations

from collections.abc import Sequence

from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.padding import Pair

Padding = tuple[Pair, Pair]
AnyPadding = Padding | str

LAYOUT = ("NHWC", "HWIO", "NHWC")
NO_PADDING: Padding = ((0, 0), (0, 0))


def conv2d(
    x: Float[Array, "batch height width channel_in"],
    kernel: Float[Array, "kernel_h kernel_w group_in channel_out"],
    *,
    stride: Pair = (1, 1),
    padding: AnyPadding = NO_PADDING,
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Float[Array, "batch height_out width_out channel_out"]:
    """Cross-correlation, as torch.nn.functional.conv2d.

    out = (size + low + high - dilation * (kernel - 1) - 1) // stride + 1

    Args:
        x: (batch, height, width, channel_in).
        kernel: (kernel_h, kernel_w, channel_in / groups, channel_out).
        stride: of height and width.
        padding: zero rows (low, high) and columns (low, high); or "same", as torch's:
            as many rows out as in, an odd zero at the end, stride 1 only.
        dilation: spacing of the kernel's taps.
        groups: number of channel groups.

    Raises:
        ValueError: "same" with a stride, an unknown string, or too large a kernel.
    """
    pads = explicit_padding(padding, kernel.shape[:2], stride=stride, dilation=dilation)
    check_kernel_fits(x.shape[1:3], kernel.shape[:2], padding=pads, dilation=dilation)
    return lax.conv_general_dilated(
        x,
        kernel,
        stride,
        pads,
        rhs_dilation=dilation,
        dimension_numbers=LAYOUT,
        feature_group_count=groups,
    )


def conv_out_size(
    size: int, kernel: int, stride: int = 1, padding: Pair = (0, 0), dilation: int = 1
) -> int:
    """Output length along one dim.

    >>> conv_out_size(721, 32, 4, (14, 14))
    180
    """
    return (size + sum(padding) - dilation * (kernel - 1) - 1) // stride + 1


def explicit_padding(
    padding: Sequence[Pair] | str,
    kernel: Sequence[int],
    *,
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[Pair, ...]:
    """Zeros (low, high) of every spatial dim for an argument `padding`.

    "same": dilation * (kernel - 1) zeros in all, the smaller half in front.

    Args:
        padding: pairs, or "same".
        kernel, stride, dilation: of every spatial dim.

    Raises:
        ValueError: "same" with a stride, as in torch, or an unknown string.
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
        same_padding(size, spacing)
        for size, spacing in zip(kernel, dilation, strict=True)
    )


def same_padding(kernel: int, dilation: int = 1) -> Pair:
    """Zeros (low, high) that keep the length: dilation * (kernel - 1) in all.

    >>> same_padding(4)
    (1, 2)
    """
    total = dilation * (kernel - 1)
    return total // 2, total - total // 2


def check_kernel_fits(
    sizes: Sequence[int],
    kernel: Sequence[int],
    *,
    padding: Sequence[Pair],
    dilation: Sequence[int],
) -> None:
    """Raises ValueError if the dilated kernel is larger than the padded array."""
    for i, (size, taps) in enumerate(zip(sizes, kernel, strict=True)):
        reach = dilation[i] * (taps - 1) + 1
        if size + sum(padding[i]) < reach:
            raise ValueError(
                f"the kernel reaches over {reach} points of spatial dim {i}, but there "
                f"are {size} and {padding[i][0]} + {padding[i][1]} of padding; add "
                "padding or make the kernel smaller"
            )
