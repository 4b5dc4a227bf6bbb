"""Matrix products over channels, also in float8.

Activations and weights are rounded to e4m3; so are gradients of the output, or to e5m2,
whose values have a wider range and one bit less.

The recipe is torchao's `rowwise_with_gw_hp` with power-of-two scales: one scale for
each token of the activations and of the gradient of the output, one for the whole
weight matrix; the gradient of the weights is computed in the dtype of the input.
Scaling by a power of two is exact, and a maximum does not depend on the order of its
terms, so the rounded float8 values are the same on every mesh.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Num

from credit_jax.ops.custom_vjp import custom_vjp, match_vma

Channels = Float[Array, "*batch channel"]

Product = Callable[[Array, Array], Array]


def dense(
    x: Channels, kernel: Float[Array, " channel *out"], *, dtype: Any = None
) -> Float[Array, "*batch *out"]:
    """Returns `x @ kernel` over the last dim of x, summed and returned in `dtype`."""
    if dtype is None or dtype == x.dtype:
        return of_matrices(jnp.matmul, x, kernel)
    # A result that is wider than x is taken to be rounded to the dtype of x later: its
    # cotangent is rounded before products.
    return of_matrices(lambda a, b: wide_product(*match_vma(a, b), dtype), x, kernel)


@partial(custom_vjp, nondiff_argnums=(2,))
def wide_product(x: Array, kernel: Array, dtype: Any) -> Array:
    """Returns `x @ kernel` in a dtype; its gradients are products of narrow arrays."""
    return jnp.matmul(x, kernel, preferred_element_type=dtype)


def wide_tangent(
    dtype: Any, saved: tuple[Array, Array], by_x: Array, by_kernel: Array
) -> Array:
    """The tangent of `wide_product`, rounded once."""
    x, kernel = saved
    wide = jnp.promote_types(x.dtype, jnp.float32)
    product = partial(jnp.matmul, preferred_element_type=wide)
    total = product(by_x, kernel) + product(x, by_kernel)
    return total.astype(dtype or x.dtype)


@partial(wide_product.defvjp, None, tangent=wide_tangent)
def _backward(
    dtype: Any, saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    del dtype
    x, kernel = saved
    # The cotangent of what is rounded later has no more digits than a narrow array.
    # Products with it as a wide factor would take several times as long.
    narrow = cotangent.astype(x.dtype)
    return narrow @ kernel.T, x.T @ narrow


def of_matrices(product: Product, x: Array, kernel: Array) -> Array:
    """Applies a product of matrices to any number of batch and output dims."""
    *batch, channels = x.shape
    _, *out = kernel.shape
    y = product(x.reshape(prod(batch), channels), kernel.reshape(channels, -1))
    return y.reshape(*batch, *out)


def add_bias(x: Channels, bias: Float[Array, " channel"]) -> Channels:
    """Returns `x + bias` in the dtype of `x`."""
    # The gradient of the bias is a sum over all points, and a 16-bit sum stops growing
    # after a few hundred terms.
    wide = jnp.promote_types(x.dtype, jnp.float32)
    lead = (1,) * (x.ndim - 1)
    return (x.astype(wide) + bias.astype(wide).reshape(*lead, -1)).astype(x.dtype)


def scale_and_shift(
    normal: Channels, scale: Float[Array, " channel"], bias: Float[Array, " channel"]
) -> Channels:
    """Returns `normal * scale + bias`, all in the dtype of `normal`."""
    lead = (1,) * (normal.ndim - 1)
    scale, bias = (a.astype(normal.dtype).reshape(*lead, -1) for a in (scale, bias))
    return normal * scale + bias


FLOAT8, WIDE_FLOAT8 = jnp.float8_e4m3fn, jnp.float8_e5m2
# The largest finite values are _MANTISSA * 2**exponent: 448 and 57,344.
_MANTISSA, _EXPONENTS = 0.875, {FLOAT8: 9, WIDE_FLOAT8: 16}
# Exponents whose powers of two, and their inverses, are normal float32 numbers.
_LIMIT = 126


def float8_dense(
    x: Channels,
    kernel: Float[Array, " channel *out"],
    *,
    summed: str | None = None,  # mesh axis of the channels
    output_axis: str | None = None,  # mesh axis of the output dims
    dtype: Any = None,
    gradient_dtype: Any = FLOAT8,  # of the cotangent of the result
) -> Float[Array, "*batch *out"]:
    """Returns `x @ kernel` of values rounded to float8, summed in float32."""
    # NaN and infinity give NaN.
    how = _Product(summed, output_axis, dtype or x.dtype, gradient_dtype)
    return of_matrices(lambda a, b: _product(a, b, how), *match_vma(x, kernel))


def quantize(
    x: Float[Array, ...],
    axis: int | None,  # dim of values with one scale; None for all values
    mesh_axes: tuple[str, ...] = (),  # over which these values are sharded
    dtype: Any = FLOAT8,
) -> tuple[Num[Array, ...], Float[Array, ...]]:
    """Scales by powers of two and rounds to float8; returns also the inverse scales."""
    largest = jnp.max(jnp.abs(x), axis, keepdims=True)
    if mesh_axes:
        largest = lax.pmax(largest, mesh_axes)
    mantissa, exponent = jnp.frexp(largest.astype(jnp.float32))
    power = _EXPONENTS[dtype] - exponent - (mantissa > _MANTISSA)
    power = jnp.where(largest > 0, jnp.clip(power, -_LIMIT, _LIMIT), 0)
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    values = (wide * _power_of_two(power, wide.dtype)).astype(dtype)
    return values, _power_of_two(-power, wide.dtype)


def _power_of_two(power: Array, dtype: Any) -> Array:
    """Returns 2**power exactly, for |power| <= 126."""
    bits = (power.astype(jnp.int32) + 127) << 23
    return lax.bitcast_convert_type(bits, jnp.float32).astype(dtype)


class _Product(NamedTuple):
    """The arguments of `float8_dense` besides arrays."""

    summed: str | None
    output_axis: str | None
    dtype: Any
    gradient_dtype: Any


@partial(custom_vjp, nondiff_argnums=(2,))
def _product(x: Array, kernel: Array, how: _Product) -> Array:
    return _product_forward(x, kernel, how)[0]


def _product_forward(x: Array, kernel: Array, how: _Product) -> tuple[Array, Any]:
    tokens, token_scales = quantize(x, 1, _named(how.summed))
    axes = _named(how.summed, how.output_axis)
    matrix, matrix_scale = quantize(kernel, None, axes)
    scales = token_scales * matrix_scale
    y = _multiply(tokens, matrix, scales.dtype) * scales
    residuals = (x, matrix, matrix_scale, kernel.dtype.type(0))
    return y.astype(how.dtype), residuals


def _product_tangent(how: _Product, residuals: Any, *tangents: Array) -> Array:
    """The exact tangent of the product of rounded values; nothing more is rounded."""
    x, matrix, matrix_scale, _ = residuals
    by_x, by_kernel = (tangent.astype(matrix_scale.dtype) for tangent in tangents)
    kernel = matrix.astype(matrix_scale.dtype) * matrix_scale
    return (by_x @ kernel + x.astype(kernel.dtype) @ by_kernel).astype(how.dtype)


@partial(_product.defvjp, _product_forward, tangent=_product_tangent)
def _product_backward(
    how: _Product, residuals: Any, grad: Array
) -> tuple[Array, Array]:
    x, matrix, matrix_scale, zero = residuals
    narrow = grad.astype(x.dtype)
    axes = _named(how.output_axis)
    tokens, token_scales = quantize(narrow, 1, axes, how.gradient_dtype)
    scales = token_scales * matrix_scale
    grad_x = _multiply(tokens, matrix.T, scales.dtype) * scales
    # A product of values that are not rounded to float8.
    grad_kernel = jnp.matmul(x.T, narrow, preferred_element_type=scales.dtype)
    return grad_x.astype(x.dtype), grad_kernel.astype(zero.dtype)


def _multiply(a: Array, b: Array, dtype: Any) -> Array:
    """`a @ b` of float8 matrices, summed in float32, or in float64 if `dtype` is."""
    if dtype == jnp.float64:
        a, b = a.astype(dtype), b.astype(dtype)
    return lax.dot(a, b, preferred_element_type=dtype)


def _named(*axes: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(axis for axis in axes if axis))
