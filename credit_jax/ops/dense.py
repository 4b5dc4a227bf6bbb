"""Matrix products over channels."""

from __future__ import annotations

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.backend import on_cpu
from credit_jax.ops.vma import match_vma


def dense(
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
    if dtype in (None, x.dtype) and _few_rows(rows, columns):
        made = _product_of_few_rows(*match_vma(rows, columns))
    else:
        made = jnp.matmul(rows, columns, preferred_element_type=dtype)
    return made.reshape(*batch, *out)


def dense_transposed(
    y: Float[Array, "rows out"], kernel: Float[Array, "channel out"]
) -> Float[Array, "rows channel"]:
    """Y times the transpose of the kernel: the gradient of a product by its rows.

    On CPU Eigen reads a large kernel 2 to 4 times slower across its rows than along
    them, so where the rows of y are few, their product is transposed instead (jax
    0.10.2, 2 cores; 288 rows of 4096 channels to 1024: 36 -> 17 ms).
    """
    if not _few_rows(y, kernel):
        return y @ kernel.T
    # XLA would make it the product of y and the kernel's transpose again.
    return lax.optimization_barrier(kernel @ y.T).T


def _few_rows(rows: Array, kernel: Array) -> bool:
    return on_cpu() and len(rows) <= min(kernel.shape)


@jax.custom_vjp
def _product_of_few_rows(x: Array, kernel: Array) -> Array:
    return x @ kernel


def _keep_factors(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return _product_of_few_rows(x, kernel), (x, kernel)


def _by_factors(factors: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, kernel = factors
    return dense_transposed(cotangent, kernel), x.T @ cotangent


_product_of_few_rows.defvjp(_keep_factors, _by_factors)
