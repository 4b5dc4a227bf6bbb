"""Matrix products over channels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from credit_jax.ops.custom_vjp import custom_vjp
from credit_jax.ops.vma import match_vma

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
            leaves it to `jnp.matmul`. A result that is wider than x is taken to be
            rounded to the dtype of x later: its cotangent is rounded before products.
    """
    if dtype is None or dtype == x.dtype:
        return of_matrices(jnp.matmul, x, kernel)
    return of_matrices(lambda a, b: wide_product(*match_vma(a, b), dtype), x, kernel)


@partial(custom_vjp, nondiff_argnums=(2,))
def wide_product(x: Array, kernel: Array, dtype: Any) -> Array:
    """Returns `x @ kernel` in a dtype, with gradients that are products of narrow ones.

    The cotangent of what is rounded later has no more digits than a narrow array.
    Products with it as a wide factor would take several times as long.
    """
    return jnp.matmul(x, kernel, preferred_element_type=dtype)


def _backward(
    dtype: Any, saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    del dtype
    x, kernel = saved
    narrow = cotangent.astype(x.dtype)
    return narrow @ kernel.T, x.T @ narrow


def wide_tangent(
    dtype: Any, saved: tuple[Array, Array], by_x: Array, by_kernel: Array
) -> Array:
    """The tangent of `wide_product`, rounded once."""
    x, kernel = saved
    wide = jnp.promote_types(x.dtype, jnp.float32)
    product = partial(jnp.matmul, preferred_element_type=wide)
    total = product(by_x, kernel) + product(x, by_kernel)
    return total.astype(dtype or x.dtype)


wide_product.defvjp(None, _backward, wide_tangent)


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


def add_bias(
    x: Float[Array, "*batch channel"], bias: Float[Array, " channel"]
) -> Float[Array, "*batch channel"]:
    """Returns `x + bias` in the dtype of `x`.

    Both the sum and the gradient of the bias are computed in float32 or wider. That
    gradient is a sum over all points, and a 16-bit sum stops growing after a few
    hundred terms.
    """
    wide = jnp.promote_types(x.dtype, jnp.float32)
    lead = (1,) * (x.ndim - 1)
    return (x.astype(wide) + bias.astype(wide).reshape(*lead, -1)).astype(x.dtype)


def scale_and_shift(
    normal: Float[Array, "*batch channel"],
    scale: Float[Array, " channel"],
    bias: Float[Array, " channel"],
) -> Float[Array, "*batch channel"]:
    """Returns `normal * scale + bias`, all in the dtype of `normal`."""
    lead = (1,) * (normal.ndim - 1)
    scale, bias = (a.astype(normal.dtype).reshape(*lead, -1) for a in (scale, bias))
    return normal * scale + bias
