"""Two-dimensional convolution of NHWC arrays, with gradients that are fast on CPU.

What XLA on CPU is slow at, and what `conv2d` does there instead (jax 0.10.2, 2 cores):

- Gradients of a convolution with a large kernel and a stride: up to 10 times faster as
  space-to-depth with stride 1, whose forward in turn is slow. So the forward is direct
  and the backward that of space-to-depth.
- Kernels of many taps: 2 to 4 times faster by Fourier transforms of tiles, in both
  directions.
- Few channels out: up to twice as fast where columns next to each other are made
  together, from a kernel with zeros at its ends.
- Gradients of a convolution with padding: that by the kernel up to 2.5 times faster
  from the padded field, that by a field of few points up to 3 times faster as one
  product.
- Convolutions of a handful of points: up to 100 times faster as one matrix product for
  each tap, in both directions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial, reduce
from math import prod

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.backend import on_cpu
from credit_jax.ops.dense import dense, dense_transposed
from credit_jax.ops.fourier_conv import Tiles, fourier_conv
from credit_jax.ops.vma import match_vma

Pair = tuple[int, int]
Padding = tuple[Pair, Pair]
AnyPadding = Padding | str

LAYOUT = ("NHWC", "HWIO", "NHWC")
NO_PADDING: Padding = ((0, 0), (0, 0))

# On CPU, fields of few points are convolved tap by tap with kernels of few taps.
_FEW_POINTS, _FEW_TAPS = 16, 9

# On CPU, convolutions with a stride make this many channels at once, though at most so
# many times the taps more, which are zeros.
_FEW_CHANNELS, _MORE_TAPS = 32, 0.4

# On CPU, Fourier transforms are taken where they leave at most so many of the direct
# sum's multiplications, in a precision that they are exact in.
_FEW_MULTIPLICATIONS = 0.4


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
        ValueError: "same" with a stride, another word, or too large a kernel.
    """
    pads = explicit_padding(padding, kernel.shape[:2], stride=stride, dilation=dilation)
    check_kernel_fits(x.shape[1:3], kernel.shape[:2], padding=pads, dilation=dilation)
    conv = _fast_on_cpu(x, kernel, stride, pads, dilation, groups)
    if conv is not None:
        return conv(*match_vma(x, kernel))
    return lax.conv_general_dilated(
        x,
        kernel,
        stride,
        pads,
        rhs_dilation=dilation,
        dimension_numbers=LAYOUT,
        feature_group_count=groups,
    )


def _fast_on_cpu(
    x: Array,
    kernel: Array,
    stride: Pair,
    padding: Sequence[Pair],
    dilation: Pair,
    groups: int,
) -> Callable[[Array, Array], Array] | None:
    """What to compute in place of the plain convolution."""
    if not on_cpu() or dilation != (1, 1) or groups != 1:
        return None
    taps = kernel.shape[:2]
    if stride != (1, 1):
        divides = all(n % s == 0 for n, s in zip(taps, stride, strict=True))
        if not divides:
            return None
        return lambda x, kernel: _strided_conv(_padded(x, padding), kernel, stride)
    sizes = x.shape[1:3]
    points = prod(
        conv_out_size(n, k, 1, p) for n, k, p in zip(sizes, taps, padding, strict=True)
    )
    if prod(taps) <= _FEW_TAPS and min(points, prod(sizes)) <= _FEW_POINTS:
        return lambda x, kernel: _tap_by_tap(_padded(x, padding), kernel)
    if not any(map(any, padding)):
        return None
    return partial(_padded_conv, padding=tuple(padding))


def _padded(x: Array, padding: Sequence[Pair]) -> Array:
    return jnp.pad(x, ((0, 0), *padding, (0, 0)))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _padded_conv(x: Array, kernel: Array, padding: Padding) -> Array:
    return _direct(x, kernel, (1, 1), padding)


def _padded_conv_forward(
    x: Array, kernel: Array, padding: Padding
) -> tuple[Array, tuple[Array, Array]]:
    return _direct(x, kernel, (1, 1), padding), (x, kernel)


def _padded_conv_backward(
    padding: Padding, saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    x, kernel = saved
    padded = _padded(x, padding)
    _, pull_kernel = jax.vjp(lambda kernel: _direct(padded, kernel, (1, 1)), kernel)
    if prod(cotangent.shape[:-1]) <= cotangent.shape[-1]:
        by_field = _field_from_product(cotangent, kernel, padding, x.shape[1:3])
    else:
        _, pull_field = jax.vjp(lambda x: _direct(x, kernel, (1, 1), padding), x)
        (by_field,) = pull_field(cotangent)
    return by_field, *pull_kernel(cotangent)


_padded_conv.defvjp(_padded_conv_forward, _padded_conv_backward)


def _field_from_product(
    cotangent: Array, kernel: Array, padding: Padding, size: tuple[int, ...]
) -> Array:
    """What each point sends back through all taps in one product, then the sums."""
    *taps, channels, out = kernel.shape
    sent = dense_transposed(cotangent.reshape(-1, out), kernel.reshape(-1, out))
    sent = sent.reshape(*cotangent.shape[:-1], *taps, channels)
    rows, columns = ([(i, n - 1 - i) for i in range(n)] for n in taps)
    moved = [
        jnp.pad(sent[:, :, :, i, j], ((0, 0), rows[i], columns[j], (0, 0)))
        for i, j in itertools.product(range(len(rows)), range(len(columns)))
    ]
    (top, _), (left, _) = padding
    return reduce(jnp.add, moved)[:, top : top + size[0], left : left + size[1]]


def _tap_by_tap(x: Array, kernel: Array) -> Array:
    """Sum over the taps of a kernel, each a matrix product."""
    taps_high, taps_wide = kernel.shape[:2]
    height, width = x.shape[1] - taps_high + 1, x.shape[2] - taps_wide + 1
    # The transpose of a split is one concatenation, that of slices a sum of paddings.
    channels = kernel.shape[2]
    taps = lax.split(
        kernel.reshape(-1, kernel.shape[3]), [channels] * (taps_high * taps_wide)
    )
    places = itertools.product(range(taps_high), range(taps_wide))
    parts = [
        dense(x[:, i : i + height, j : j + width], tap)
        for (i, j), tap in zip(places, taps, strict=True)
    ]
    return reduce(jnp.add, parts)


def _wide(x: Array, kernel: Array, stride: Pair) -> Array:
    """Some neighboring columns of the output at once, as channels of one point."""
    (high, step), (_, taps_wide, _, channel_out) = stride, kernel.shape
    width = conv_out_size(x.shape[2], taps_wide, step)
    affordable = 1 + int(_MORE_TAPS * taps_wide) // step
    count = min(max(1, _FEW_CHANNELS // channel_out), affordable, width)
    if count == 1:
        return _direct(x, kernel, stride)
    x = jnp.pad(x, ((0, 0), (0, 0), (0, -width % count * step), (0, 0)))
    last = step * (count - 1)
    ends = [(step * i, last - step * i) for i in range(count)]
    kernels = [jnp.pad(kernel, ((0, 0), end, (0, 0), (0, 0))) for end in ends]
    y = _direct(x, jnp.concatenate(kernels, -1), (high, step * count))
    return y.reshape(*y.shape[:2], -1, channel_out)[:, :, :width]


def _direct(
    x: Array, kernel: Array, stride: Pair, padding: Padding = NO_PADDING
) -> Array:
    return lax.conv_general_dilated(
        x, kernel, stride, padding, dimension_numbers=LAYOUT
    )


def _space_to_depth(x: Array, kernel: Array, stride: Pair) -> Array:
    """The same convolution with stride 1, on stride * stride times the channels."""
    (sh, sw), (kh, kw, channel_in, channel_out) = stride, kernel.shape
    height = (x.shape[1] - kh) // sh * sh + kh
    width = (x.shape[2] - kw) // sw * sw + kw
    x = x[:, :height, :width]
    x = x.reshape(x.shape[0], height // sh, sh, width // sw, sw, channel_in)
    x = x.transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(*x.shape[:3], sh * sw * channel_in)
    kernel = kernel.reshape(kh // sh, sh, kw // sw, sw, channel_in, channel_out)
    kernel = kernel.transpose(0, 2, 1, 3, 4, 5)
    kernel = kernel.reshape(kh // sh, kw // sw, sh * sw * channel_in, channel_out)
    return _direct(x, kernel, (1, 1))


def _by_fourier(x: Array, kernel: Array, stride: Pair) -> bool:
    """Whether Fourier transforms are faster."""
    taps = kernel.shape[1] // stride[1]
    tiles = Tiles.of(conv_out_size(x.shape[2], kernel.shape[1], stride[1]), taps)
    exact = x.dtype in (jnp.float32, jnp.float64)
    return exact and tiles.cost <= _FEW_MULTIPLICATIONS


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _strided_conv(x: Array, kernel: Array, stride: Pair) -> Array:
    forward = fourier_conv if _by_fourier(x, kernel, stride) else _wide
    return forward(x, kernel, stride)


def _strided_conv_forward(
    x: Array, kernel: Array, stride: Pair
) -> tuple[Array, tuple[Array, Array]]:
    return _strided_conv(x, kernel, stride), (x, kernel)


def _strided_conv_backward(
    stride: Pair, saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    x, kernel = saved
    by_kernel = fourier_conv if _by_fourier(x, kernel, stride) else _space_to_depth
    _, pull_field = jax.vjp(lambda x: _space_to_depth(x, kernel, stride), x)
    _, pull_kernel = jax.vjp(lambda kernel: by_kernel(x, kernel, stride), kernel)
    return *pull_field(cotangent), *pull_kernel(cotangent)


_strided_conv.defvjp(_strided_conv_forward, _strided_conv_backward)


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
    """The zeros (low, high) of every spatial dim that an argument `padding` means.

    "same": dilation * (kernel - 1) zeros in all, the smaller half in front.

    Args:
        padding: pairs, or "same".
        kernel, stride, dilation: of every spatial dim.

    Raises:
        ValueError: "same" with a stride, as in torch, or another word.
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
    """Raise ValueError where the kernel reaches over more points than there are."""
    for i, (size, taps) in enumerate(zip(sizes, kernel, strict=True)):
        reach = dilation[i] * (taps - 1) + 1
        if size + sum(padding[i]) < reach:
            raise ValueError(
                f"the kernel reaches over {reach} points of spatial dim {i}, but there "
                f"are {size} and {padding[i][0]} + {padding[i][1]} of padding; add "
                "padding or make the kernel smaller"
            )
