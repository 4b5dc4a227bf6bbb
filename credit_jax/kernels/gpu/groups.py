"""Into how many groups of rows the kernel gradient of a dense layer is split.

The gradient contracts all points of a field but has few output tiles, too few to fill
a GPU. Groups of rows fill it, but each group writes a whole kernel, and another GPU
kernel adds them: with the few rows of a domain shard that would move more than the
factors of the product do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array

# Side of a tile of a product.
TILE = 128
# Tiles that an H100 computes at once.
TILES = 132
# Its bytes and bfloat16 operations a second, and seconds that another kernel takes at
# least.
_BANDWIDTH, _PEAK, _LAUNCH = 3.35e12, 989e12, 2e-6
# Bytes of an element of a group's sum, which is float32.
_WIDE = 4


def num_groups(
    rows: int,
    channels: int,
    out: int,
    *,
    itemsize: int,
    candidates: Iterable[int] | None = None,
) -> int:
    """Returns the number of groups whose gradient takes least time.

    Args:
        rows: length of the contracted dim.
        channels, out: dims of the result.
        itemsize: bytes of an element of the factors.
        candidates: numbers to choose from; by default up to two waves of tiles.

    >>> num_groups(288000, 128, 512, itemsize=2)
    33
    """
    tiles = math.ceil(channels / TILE) * math.ceil(out / TILE)
    if candidates is None:
        candidates = range(1, 2 * math.ceil(TILES / tiles) + 1)

    def seconds(groups: int) -> float:
        moved = rows * (channels + out) * itemsize / _BANDWIDTH
        product = max(moved, 2 * rows * channels * out / _PEAK)
        # The last wave of tiles takes as long as the others.
        waves = math.ceil(tiles * groups / TILES)
        product *= waves * TILES / (tiles * groups)
        if groups == 1:
            return product
        written = groups * channels * out * _WIDE
        return product + 2 * written / _BANDWIDTH + _LAUNCH

    return min(candidates, key=seconds)


def row_major(x: Array) -> Array:
    """Returns the array with its last dim contiguous in memory, and so its gradient.

    XLA lets a product or a convolution choose, which costs others more. On an H200:
    (4500, 4096) in columns, whose length of 9,000 bytes is no multiple of 16, took
    three times as long in the next product; kernel gradients in the order of a
    convolution were transposed in float32 within the optimizer's update, which took
    three times as long.
    """
    return with_layout_constraint(jnp.asarray(x), Layout(tuple(range(x.ndim))))
