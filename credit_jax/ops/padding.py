"""Padding of arrays with a constant, where negative widths remove points, and sizes."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Shaped

IntPair = tuple[int, int]


def next_power_of_2(size: int) -> int:
    """Returns the smallest power of two that is at least `size`, a size from 0 on."""
    return 1 << max(size - 1, 0).bit_length()


def pad(
    x: Shaped[Array, "*shape"], widths: Sequence[IntPair], value: float = 0
) -> Shaped[Array, "*padded"]:
    """Pads every dim with `value` at both ends.

    Args:
        x: array of any shape and dtype.
        widths: (low, high) for each dim; negative widths remove points.
        value: the constant to pad with, cast to the dtype of `x`.
    """
    if not any(low or high for low, high in widths):
        return x
    config = [(low, high, 0) for low, high in widths]
    return lax.pad(x, jnp.asarray(value, x.dtype), config)


def pad_spatial(
    x: Shaped[Array, "batch *spatial channel"], widths: Sequence[IntPair]
) -> Shaped[Array, "batch *padded channel"]:
    """Pads every spatial dim with zeros at both ends.

    Args:
        x: (batch, spatial..., channel).
        widths: (low, high) for each spatial dim; negative widths remove points.
    """
    return pad(x, [(0, 0), *widths, (0, 0)])


def pad_dim(
    x: Shaped[Array, "*shape"], dim: int, width: IntPair, value: float = 0
) -> Shaped[Array, "*padded"]:
    """`pad` along one dim."""
    return pad(x, [width if d == dim else (0, 0) for d in range(x.ndim)], value)


def conv_out_size(
    size: int,
    kernel: int,
    stride: int = 1,
    padding: IntPair = (0, 0),
    dilation: int = 1,
) -> int:
    """Returns the output length of a convolution along one dim.

    >>> conv_out_size(721, 32, 4, (14, 14))
    180
    """
    return (size + sum(padding) - dilation * (kernel - 1) - 1) // stride + 1
