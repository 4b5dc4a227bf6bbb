"""Matrix products over channels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

Product = Callable[[Array, Array], Array]


def dense(
    x: Float[Array, "*batch channel"],
    kernel: Float[Array, " channel *out"],
    *,
    dtype: Any = None,
) -> Float[Array, "*batch *out"]:
    """Returns `x @ kernel`, contracting the last dim of x and the first of the kernel.

    Args:
        x: (batch..., channel).
        kernel: (channel, out...).
        dtype: dtype of the sums and of the result (`preferred_element_type`); None
            leaves it to `jnp.matmul`.
    """
    product = partial(jnp.matmul, preferred_element_type=dtype)
    return of_matrices(product, x, kernel)


def of_matrices(product: Product, x: Array, kernel: Array) -> Array:
    """Applies a matrix product to arrays with any number of batch and output dims.

    Args:
        product: (rows, channel), (channel, columns) -> (rows, columns).
        x: (batch..., channel).
        kernel: (channel, out...).

    Returns:
        (batch..., out...).
    """
    *batch, channels = x.shape
    _, *out = kernel.shape
    y = product(x.reshape(prod(batch), channels), kernel.reshape(channels, -1))
    return y.reshape(*batch, *out)
