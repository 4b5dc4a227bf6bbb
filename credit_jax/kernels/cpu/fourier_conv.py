"""Convolution with a large kernel by Fourier transforms along the columns.

The overlap-save method: the columns are cut into overlapping tiles; tiles and kernel
are transformed and multiplied frequency by frequency instead of tap by tap. For a
kernel of 16 columns this takes a seventh of the multiplications. Rows are summed
directly. The short transforms are matrix products, too, and so are the gradients.

Source: A. V. Oppenheim, R. W. Schafer, Discrete-Time Signal Processing, 8.7.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.ops.custom_vjp import linear
from credit_jax.ops.space_to_depth import pad, pad_spatial, split_taps

# A tile computes about this many output columns for each column of the kernel.
_TILE_PER_TAP = 6


@dataclass(frozen=True)
class Tiles:
    """Partition of the output columns into tiles."""

    count: int
    width: int  # number of its output columns
    taps: int  # number of columns of the kernel, divided by the stride
    size: int  # number of points of a transform, even
    frequencies: int  # number of them, of a transform

    @classmethod
    def of(cls, width: int, taps: int) -> Tiles:
        """Returns the tiles for `width` output columns."""
        count = max(1, round(width / (_TILE_PER_TAP * taps)))
        each = -(-width // count)
        size = each + taps - 1 + (each + taps - 1) % 2
        return cls(-(-width // each), each, taps, size, size // 2 + 1)

    @property
    def cost(self) -> float:
        """Number of multiplications divided by that of the direct sum."""
        return 4 * self.frequencies / (self.width * self.taps)


def fourier_conv(
    x: Float[Array, "batch height width channel_in"],
    kernel: Float[Array, "kernel_h kernel_w channel_in channel_out"],
    stride: tuple[int, int],
) -> Float[Array, "batch height_out width_out channel_out"]:
    """Cross-correlation without padding, of sizes that are multiples of the stride."""
    (sh, sw), (kh, kw, channel_in, channel_out) = stride, kernel.shape
    height, width = (x.shape[1] - kh) // sh + 1, (x.shape[2] - kw) // sw + 1
    taps, (high, wide) = split_taps(kernel, stride)
    tiles, depth = Tiles.of(width, wide), sh * sw * channel_in
    forward, *of_kernel, inverse = _transforms(tiles, x.dtype)

    taps = taps.transpose(2, 1, 3, 4, 0, 5).reshape(wide, -1)
    real, imaginary = (
        (part @ taps).reshape(-1, depth, high * channel_out) for part in of_kernel
    )

    def one_tile(x: Array) -> Array:
        rows = x.reshape(len(x), -1, sh, tiles.size, sw * channel_in)
        rows = rows.transpose(3, 0, 1, 2, 4).reshape(tiles.size, -1)
        fields = (forward @ rows).reshape(tiles.frequencies, -1, depth)
        shape = (-1, 2, *x.shape[:1], height + high - 1, high, channel_out)
        cos, sin = (
            _sum_rows((fields @ part).reshape(shape), high)
            for part in (real, imaginary)
        )
        both = jnp.stack([cos[:, 0] - sin[:, 1], cos[:, 1] + sin[:, 0]])
        y = inverse @ both.reshape(2 * tiles.frequencies, -1)
        return y.reshape(tiles.width, -1, height, channel_out).transpose(1, 2, 0, 3)

    step, size = sw * tiles.width, sw * tiles.size
    ends = (sh * (height + high - 1), (tiles.count - 1) * step + size)
    more = [(0, end - have) for end, have in zip(ends, x.shape[1:3], strict=True)]
    x = pad_spatial(x, more)
    starts = range(0, tiles.count * step, step)
    outputs = [one_tile(x[:, :, start : start + size]) for start in starts]
    return jnp.concatenate(outputs, 2)[:, :, :width]


def _transforms(tiles: Tiles, dtype: np.dtype) -> tuple[Array, ...]:
    """Returns the matrices of the transforms, where part is real or imaginary."""
    # Forward transform of tiles (frequency * part, point); real and imaginary part of
    # the transform of the kernel, each (frequency, tap); inverse transform of tiles
    # (column, part * frequency).
    angle = np.arange(tiles.frequencies)[:, None] * np.arange(tiles.size)
    # Whole turns are taken off as integers, without rounding.
    angle = 2 * np.pi / tiles.size * (angle % tiles.size)
    cos, sin = np.cos(angle), np.sin(angle)
    forward = np.stack([cos, -sin], 1).reshape(-1, tiles.size)
    # All but the first and the last frequency stand for their conjugates, too.
    weight = np.full((tiles.frequencies, 1), 2 / tiles.size)
    weight[[0, -1]] = 1 / tiles.size
    inverse = np.concatenate([weight * cos, -weight * sin])[:, : tiles.width].T
    of_kernel = cos[:, : tiles.taps], sin[:, : tiles.taps]
    matrices = forward, *of_kernel, inverse
    return tuple(jnp.asarray(matrix, dtype) for matrix in matrices)


def _sum_rows(tap_products: Array, high: int) -> Array:
    """Returns out[h] = sum over `high` taps i of made[row h + i, tap i]."""
    # Maps (frequency, part, batch, row, tap, channel) to (frequency, part, batch, row,
    # channel).
    height = tap_products.shape[3] - high + 1

    def transposed(cotangent: Array) -> Array:
        # Stacks the paddings; JAX's transpose of the slices would sum them.
        ends = [(i, high - 1 - i) for i in range(high)]
        lead = ((0, 0),) * 3
        return jnp.stack([pad(cotangent, (*lead, end, (0, 0))) for end in ends], 4)

    return linear(
        lambda x: reduce(jnp.add, (x[:, :, :, i : i + height, i] for i in range(high))),
        transposed,
        tap_products,
    )
