"""Matrix products over channels."""

from __future__ import annotations

from math import prod
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float


def channel_product(
    x: Float[Array, "*batch channel"],
    kernel: Float[Array, " channel *out"],
    *,
    dtype: Any = None,
) -> Float[Array, "*batch *out"]:
    """X times the kernel, summed over the last dim of x and the first of the kernel.

    It is one product of two matrices, so that its gradient by the kernel sums over one
    dim. XLA on CPU transposes what is summed over several, which takes longer there
    than the product.

    Args:
        x: (batch..., channel).
        kernel: (channel, out...).
        dtype: of the sums and the result, if not that of x.
    """
    *batch, channels = x.shape
    _, *out = kernel.shape
    rows, columns = x.reshape(prod(batch), channels), kernel.reshape(channels, -1)
    made = jnp.matmul(rows, columns, preferred_element_type=dtype)
    return made.reshape(*batch, *out)
