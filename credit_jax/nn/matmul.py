"""The matrix product of dense layers, in the precision that the context asks for."""

from __future__ import annotations

from typing import Any, Literal

from jaxtyping import Array, Float

from credit_jax.kernels import dense
from credit_jax.nn.context import Context
from credit_jax.ops.float8 import float8_dense

# Which dim of its kernel a layer splits over tp.
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
    """`x @ kernel`; of float8 values where the context asks for it.

    Args:
        x, kernel: factors in the compute dtype.
        context: without one the product is never in float8.
        shape: (input, output) channels of the whole matrix, not of this shard; without
            it the product is never in float8.
        split: which of them tp splits.
        dtype: of the result, if not that of x.
    """
    float8 = None if context is None else context.precision.float8
    if not context or not shape or not float8 or not float8.takes(*shape):
        return dense(x, kernel, dtype=dtype)
    if context.float8_matrices is not None:
        context.float8_matrices.append(shape)
    tensor = context.axes.tensor
    summed, made = (tensor if split == which else None for which in ("row", "column"))
    return float8_dense(x, kernel, summed=summed, made=made, dtype=dtype)
