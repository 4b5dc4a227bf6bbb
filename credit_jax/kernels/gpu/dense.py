"""Matrix products over channels whose kernel gradient is summed in groups of rows.

The gradient contracts all points of a field but has few output tiles, too few to fill
a GPU. Groups of rows fill it, but each group writes a whole kernel, and another GPU
kernel adds them: with the few rows of a domain shard that would move more than the
factors of the product do. XLA's split-K pads the factors to parts of equal length,
which copies them. Groups that divide the number of rows need no copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float

from credit_jax.ops import dense as ops
from credit_jax.ops.custom_vjp import custom_vjp, match_vma
from credit_jax.ops.dense import of_matrices, wide_tangent

# Side of a tile of a product.
TILE = 128
# Tiles that an H100 computes at once.
TILES = 132
# Its bytes and bfloat16 operations a second, and seconds that another kernel takes at
# least.
_BANDWIDTH, _PEAK, _LAUNCH = 3.35e12, 989e12, 2e-6
# Bytes of an element of a group's sum, which is float32.
_WIDE = 4
# With fewer rows the sum is not split, and XLA chooses the order of elements.
MANY_ROWS = 4096
# Most groups: more than fill a GPU with one tile each.
_MOST = 256


def dense(
    x: Float[Array, "*batch channel"],
    kernel: Float[Array, " channel *out"],
    *,
    dtype: Any = None,
) -> Float[Array, "*batch *out"]:
    """`ops.dense`; for many rows, its kernel gradient is `kernel_gradient`."""
    if x.size // x.shape[-1] < MANY_ROWS:
        return ops.dense(x, kernel, dtype=dtype)
    return of_matrices(lambda a, b: _product(*match_vma(a, b), dtype), x, kernel)


@partial(custom_vjp, nondiff_argnums=(2,))
def _product(x: Array, kernel: Array, dtype: Any) -> Array:
    return row_major(jnp.matmul(x, kernel, preferred_element_type=dtype))


@partial(_product.defvjp, None, tangent=wide_tangent)
def _backward(
    dtype: Any, saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    del dtype
    x, kernel = saved
    cotangent = cotangent.astype(x.dtype)  # as of `ops.dense.wide_product`
    by_x = jnp.matmul(cotangent, kernel.T, preferred_element_type=x.dtype)
    return row_major(by_x), kernel_gradient(x, cotangent).astype(kernel.dtype)


def kernel_gradient(
    x: Float[Array, "rows channel"], cotangent: Float[Array, "rows out"]
) -> Float[Array, "channel out"]:
    """Returns `x.T @ cotangent` in float32 or wider, as a sum over groups of rows."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    groups = num_groups(
        *(len(x), x.shape[1], cotangent.shape[1]),
        itemsize=x.dtype.itemsize,
        candidates=(g for g in range(1, _MOST + 1) if len(x) % g == 0),
    )
    left, right = (a.reshape(groups, -1, a.shape[1]) for a in (x, cotangent))
    parts = jnp.einsum("grc,gro->gco", left, right, preferred_element_type=wide)
    return parts.sum(0)


def num_groups(
    rows: int,
    channels: int,
    out: int,
    *,
    itemsize: int,
    candidates: Iterable[int] | None = None,
) -> int:
    """Returns the number of groups whose gradient takes least time."""
    tiles = math.ceil(channels / TILE) * math.ceil(out / TILE)
    if candidates is None:
        # Up to two waves of tiles.
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
    """Returns the array with its last dim contiguous in memory, and so its gradient."""
    # XLA lets a product or a convolution choose, which costs others more. On an H200:
    # (4500, 4096) in columns, whose length of 9,000 bytes is no multiple of 16, took
    # three times as long in the next product; kernel gradients in the order of a
    # convolution were transposed in float32 within the optimizer's update, which took
    # three times as long.
    return with_layout_constraint(jnp.asarray(x), Layout(tuple(range(x.ndim))))
