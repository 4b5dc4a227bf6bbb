"""The matrix product of dense layers, in float8 if the precision selects the layer."""

from __future__ import annotations

from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Float

from credit_jax.kernels import dense
from credit_jax.nn.context import Context
from credit_jax.ops.float8 import float8_dense

# The dim of the kernel of a layer that is sharded over tp.
Split = Literal["column", "row"] | None


def matmul(
    x: Float[Array, "*batch channel"],
    kernel: Float[Array, " channel *out"],
    context: Context | None = None,
    *,
    shape: tuple[int, int] | None = None,
    split: Split = None,
    dtype: Any = None,
) -> Float[Array, "*batch *out"]:
    """Returns `x @ kernel`, in float8 if the context's precision selects the matrix.

    Args:
        x: (batch..., channel), in the compute dtype.
        kernel: (channel, out...), in the compute dtype.
        context: None never multiplies in float8.
        shape: (input, output) channels of the global matrix; None never multiplies in
            float8.
        split: how the matrix is sharded over tp: output channels ("column"), input
            channels ("row"), or not at all (None).
        dtype: dtype of the result; None for that of x.
    """
    float8 = None if context is None else context.precision.float8
    if not context or not shape or not float8 or not float8.takes(*shape):
        return dense(x, kernel, dtype=dtype)
    if context.float8_matrices is not None:
        context.float8_matrices.append(shape)
    tensor = context.axes.tensor
    summed, output_axis = (
        tensor if split == which else None for which in ("row", "column")
    )
    return float8_dense(
        x,
        kernel,
        summed=summed,
        output_axis=output_axis,
        dtype=dtype,
        gradient_dtype=getattr(jnp, float8.gradient_dtype),
    )
