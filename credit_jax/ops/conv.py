"""Two-dimensional convolution of NHWC arrays, its output size and its padding."""

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


def conv_out_size(
    size: int, kernel: int, stride: int = 1, padding: Pair = (0, 0), dilation: int = 1
) -> int:
    """Returns the output length of a convolution along one dim.

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
        same_padding(size, spacing)
        for size, spacing in zip(kernel, dilation, strict=True)
    )


def same_padding(kernel: int, dilation: int = 1) -> Pair:
    """Returns the zeros (low, high) that keep the length at stride 1.

    They are dilation * (kernel - 1) in total.

    >>> same_padding(4)
    (1, 2)
    """
    total = dilation * (kernel - 1)
    return total // 2, total - total // 2


def checked_padding(
    sizes: Sequence[int],
    kernel: Sequence[int],
    padding: Sequence[Pair] | str,
    *,
    stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[Pair, ...]:
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
