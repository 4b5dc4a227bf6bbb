"""Matrix products over channels whose kernel gradient is summed in groups of rows.

XLA's split-K pads the factors to parts of equal length, which copies them. Groups that
divide the number of rows need no copy.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from credit_jax.kernels.gpu.groups import num_groups, row_major
from credit_jax.ops import dense as ops
from credit_jax.ops.custom_vjp import custom_vjp
from credit_jax.ops.dense import of_matrices, wide_tangent
from credit_jax.ops.vma import match_vma

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


def _backward(
    dtype: Any, saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    del dtype
    x, kernel = saved
    cotangent = cotangent.astype(x.dtype)  # as of `ops.dense.wide_product`
    by_x = jnp.matmul(cotangent, kernel.T, preferred_element_type=x.dtype)
    return row_major(by_x), kernel_gradient(x, cotangent).astype(kernel.dtype)


_product.defvjp(None, _backward, wide_tangent)


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
