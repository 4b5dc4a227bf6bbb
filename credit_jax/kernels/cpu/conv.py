"""Alternative implementations of 2-D convolutions that XLA compiles poorly on CPU.

Speedups are measured with jax 0.10.2 on 2 cores.

- Gradients of a strided convolution with a large kernel: up to 10 times faster as
  space-to-depth and a convolution of stride 1, whose forward pass is slow. The forward
  pass is therefore direct and the backward pass that of space-to-depth.
- Kernels of many taps: 2 to 4 times faster by Fourier transforms of tiles, forward and
  backward.
- Few output channels: up to twice as fast if neighboring columns are computed together
  by a kernel that is padded with zeros.
- Gradients in loops. XLA's fast convolutions (Eigen's) are of channels-last fields with
  kernels whose last dims are the channels. It rewrites other layouts to these in the
  entry computation of a program alone. JAX's gradients have other layouts, so in a loop
  (of micro-batches, forecast steps or blocks) they are plain loops over all products:
  5 to 400 times as slow as those of `direct_conv`. With stride 1 the gradient of a
  field of few points is up to 3 times faster as one matrix product.
- Convolutions of at most 16 points: up to 100 times faster as one matrix product for
  each tap, forward and backward.
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

from credit_jax.kernels.cpu.fourier_conv import Tiles, fourier_conv
from credit_jax.ops.conv import (
    NO_PADDING,
    AnyPadding,
    Padding,
    checked_padding,
)
from credit_jax.ops.custom_vjp import custom_vjp, match_vma
from credit_jax.ops.dense import dense
from credit_jax.ops.space_to_depth import (
    LAYOUTS,
    IntPair,
    conv_out_size,
    pad_spatial,
    phases,
    plain_conv,
    points_together,
)

# Numbers of each spatial dim.
Sizes = tuple[int, ...]
Pads = tuple[IntPair, ...]


@partial(custom_vjp, nondiff_argnums=(2, 3, 4))
def direct_conv(
    x: Array, kernel: Array, stride: Sizes, padding: Pads, dilation: Sizes
) -> Array:
    """Cross-correlation of one group of channels in two or three dims."""
    return _conv(x, kernel, padding, strides=stride, dilation=dilation)


@partial(direct_conv.defvjp, None)
def _backward(
    stride: Sizes,
    padding: Pads,
    dilation: Sizes,
    saved: tuple[Array, Array],
    cotangent: Array,
) -> tuple[Array, Array]:
    x, kernel = saved
    how, sizes, taps = (stride, padding, dilation), x.shape[1:-1], kernel.shape[:-2]
    by_field = field_gradient(cotangent, kernel, sizes, *how)
    return by_field, kernel_gradient(x, cotangent, taps, *how)


def field_gradient(
    cotangent: Array,
    kernel: Array,
    sizes: Sequence[int],
    stride: Sizes,
    padding: Pads,
    dilation: Sizes,
) -> Array:
    """Returns the gradient of the field: a convolution with the reversed kernel."""
    taps, points = kernel.shape[:-2], cotangent.shape[1:-1]
    dims = zip(sizes, taps, points, stride, padding, dilation, strict=True)
    pads = []
    for size, num_taps, num_points, step, (low, _), spacing in dims:
        reach = (num_taps - 1) * spacing
        leading = reach - low
        spread = (num_points - 1) * step + 1
        # Negative where the padding is wider than the kernel's reach.
        pads.append((leading, size + reach - spread - leading))
    reversed_kernel = jnp.swapaxes(jnp.flip(kernel, tuple(range(len(sizes)))), -2, -1)
    return _conv(cotangent, reversed_kernel, pads, spread=stride, dilation=dilation)


def kernel_gradient(
    x: Array,
    cotangent: Array,
    taps: Sequence[int],
    stride: Sizes,
    padding: Pads,
    dilation: Sizes,
) -> Array:
    """Returns the gradient of the kernel: a convolution with channels as samples."""
    # Up to 2.5 times faster than a padded convolution.
    x = pad_spatial(x, padding)
    num = len(taps)
    sizes, points = x.shape[1:-1], cotangent.shape[1:-1]
    dims = zip(sizes, taps, points, stride, dilation, strict=True)
    # Points that no tap reaches are cut off.
    pads = [
        (0, (num_taps - 1) * spacing + (num_points - 1) * step + 1 - size)
        for size, num_taps, num_points, step, spacing in dims
    ]
    spatial = range(1, num + 1)
    by_kernel = _conv(
        x.transpose(num + 1, *spatial, 0),
        cotangent.transpose(*spatial, 0, num + 1),
        pads,
        strides=dilation,
        dilation=stride,
    )
    return by_kernel.transpose(*spatial, 0, num + 1)


def _conv(
    x: Array,
    kernel: Array,
    padding: Sequence[IntPair],
    *,
    strides: Sizes | None = None,
    spread: Sizes | None = None,
    dilation: Sizes,
) -> Array:
    num = len(padding)
    if x.dtype == jnp.float64:
        # XLA's fast convolutions in float64 spread no points, nor have they padding
        # wider than the kernel, which it would make of one before the convolution.
        if spread:
            zeros = [(0, 0, 0), *((0, 0, step - 1) for step in spread), (0, 0, 0)]
            x, spread = lax.pad(x, jnp.zeros((), x.dtype), zeros), None
        x = lax.optimization_barrier(x)
    return lax.conv_general_dilated(
        x,
        kernel,
        strides or (1,) * num,
        padding,
        lhs_dilation=spread,
        rhs_dilation=dilation,
        dimension_numbers=LAYOUTS[num],
    )


Convolve = Callable[[Array, Array], Array]

# At most this many points and taps are computed tap by tap.
_FEW_POINTS, _FEW_TAPS = 16, 9

# Strided convolutions compute several columns together, up to this number of channels,
# if the zeros added to the kernel are at most this fraction of its columns.
_FEW_CHANNELS, _MORE_TAPS = 32, 0.4

# Fourier transforms are used if they need at most this fraction of the multiplications
# of the direct sum.
_FEW_MULTIPLICATIONS = 0.4


def conv2d(
    x: Float[Array, "batch height width channel_in"],
    kernel: Float[Array, "kernel_h kernel_w group_in channel_out"],
    *,
    stride: IntPair = (1, 1),
    padding: AnyPadding = NO_PADDING,
    dilation: IntPair = (1, 1),
    groups: int = 1,
) -> Float[Array, "batch height_out width_out channel_out"]:
    """`ops.conv2d`, with faster implementations for dilation 1 and a single group."""
    pads = checked_padding(
        x.shape[1:-1], kernel.shape[:2], padding, stride=stride, dilation=dilation
    )
    if groups == 1:
        x, kernel = match_vma(x, kernel)
        faster = _faster(x, kernel, stride, pads) if dilation == (1, 1) else None
        if faster:
            return faster(x, kernel)
        return _direct(x, kernel, stride, pads, dilation)
    return plain_conv(x, kernel, stride, pads, dilation, groups)


def _faster(
    x: Array, kernel: Array, stride: IntPair, padding: Sequence[IntPair]
) -> Convolve | None:
    """Returns a faster implementation than `_direct`, or None."""
    taps, sizes = kernel.shape[:2], x.shape[1:3]
    if stride != (1, 1):
        if any(n % s for n, s in zip(taps, stride, strict=True)):
            return None
        return lambda x, kernel: _strided(pad_spatial(x, padding), kernel, stride)
    points = prod(
        conv_out_size(n, k, 1, p) for n, k, p in zip(sizes, taps, padding, strict=True)
    )
    if prod(taps) <= _FEW_TAPS and min(points, prod(sizes)) <= _FEW_POINTS:
        return lambda x, kernel: _tap_by_tap(pad_spatial(x, padding), kernel)
    if len(x) * points <= kernel.shape[-1]:
        return lambda x, kernel: _few_points(x, kernel, tuple(padding))
    return None


def _direct(
    x: Array,
    kernel: Array,
    stride: IntPair = (1, 1),
    padding: Sequence[IntPair] = NO_PADDING,
    dilation: IntPair = (1, 1),
) -> Array:
    return direct_conv(x, kernel, stride, tuple(padding), dilation)


# ------------------------------------------------- stride 1


@partial(custom_vjp, nondiff_argnums=(2,))
def _few_points(x: Array, kernel: Array, padding: Padding) -> Array:
    return _direct(x, kernel, padding=padding)


@partial(_few_points.defvjp, None)
def _few_points_backward(
    padding: Padding, saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    x, kernel = saved
    by_kernel = kernel_gradient(x, cotangent, kernel.shape[:2], (1, 1), padding, (1, 1))
    # The gradient of the field: one product with all taps, then a sum.
    size = x.shape[1:3]
    *taps, channels, out = kernel.shape
    by_tap = cotangent.reshape(-1, out) @ kernel.reshape(-1, out).T
    by_tap = by_tap.reshape(*cotangent.shape[:-1], *taps, channels)
    rows, columns = ([(i, n - 1 - i) for i in range(n)] for n in taps)
    shifted = [
        pad_spatial(by_tap[:, :, :, i, j], (rows[i], columns[j]))
        for i, j in itertools.product(range(len(rows)), range(len(columns)))
    ]
    (top, _), (left, _) = padding
    field_from_product = reduce(jnp.add, shifted)[
        :, top : top + size[0], left : left + size[1]
    ]
    return field_from_product, by_kernel


def _tap_by_tap(x: Array, kernel: Array) -> Array:
    """Convolves without padding as a sum over taps, each a matrix product."""
    taps_h, taps_w, channels = kernel.shape[:3]
    height, width = x.shape[1] - taps_h + 1, x.shape[2] - taps_w + 1
    # The transpose of `split` is one concatenation, that of slices a sum of paddings.
    taps = lax.split(
        kernel.reshape(-1, kernel.shape[3]), [channels] * (taps_h * taps_w)
    )
    indices = itertools.product(range(taps_h), range(taps_w))
    parts = [
        dense(x[:, i : i + height, j : j + width], tap)
        for (i, j), tap in zip(indices, taps, strict=True)
    ]
    return reduce(jnp.add, parts)


# ------------------------------------------------- strides that divide the kernel


@partial(custom_vjp, nondiff_argnums=(2,))
def _strided(x: Array, kernel: Array, stride: IntPair) -> Array:
    forward = fourier_conv if _by_fourier(x, kernel, stride) else _columns_together
    return forward(x, kernel, stride)


@partial(_strided.defvjp, None)
def _strided_backward(
    stride: IntPair, saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    x, kernel = saved
    by_kernel = fourier_conv if _by_fourier(x, kernel, stride) else _space_to_depth
    _, pull_field = jax.vjp(lambda x: _space_to_depth(x, kernel, stride), x)
    _, pull_kernel = jax.vjp(lambda kernel: by_kernel(x, kernel, stride), kernel)
    return *pull_field(cotangent), *pull_kernel(cotangent)


def _by_fourier(x: Array, kernel: Array, stride: IntPair) -> bool:
    """Whether Fourier transforms are faster, in float32 or float64 only."""
    taps = kernel.shape[1] // stride[1]
    tiles = Tiles.of(conv_out_size(x.shape[2], kernel.shape[1], stride[1]), taps)
    exact = x.dtype in (jnp.float32, jnp.float64)
    return exact and tiles.cost <= _FEW_MULTIPLICATIONS


def _columns_together(x: Array, kernel: Array, stride: IntPair) -> Array:
    """Convolves with several neighboring output columns as channels of one point."""
    step, (_, taps_w, _, channel_out) = stride[1], kernel.shape
    width = conv_out_size(x.shape[2], taps_w, step)
    affordable = 1 + int(_MORE_TAPS * taps_w) // step
    count = min(max(1, _FEW_CHANNELS // channel_out), affordable, width)
    if count == 1:
        return _direct(x, kernel, stride)
    return points_together(x, kernel, stride, NO_PADDING, (1, count), _direct)


def _space_to_depth(x: Array, kernel: Array, stride: IntPair) -> Array:
    """Convolves with stride 1 on the phases of the input as channels."""
    return _direct(*phases(x, kernel, stride))
