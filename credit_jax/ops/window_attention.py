"""The two products of attention within windows, of few tokens each."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from credit_jax.ops.backend import on_cpu

# XLA on CPU calls Eigen for every matrix of a batch of products, which takes 2 us
# whatever its size; products whose sum over channels goes on into another sum are part
# of a fusion. Measured with heads of 16 and 32 channels, 2026-11, jax 0.10.2, 2 cores.
_FEW_TOKENS = 16

_PAIRS, _SUMS = "...id,...jd->...ij", "...ij,...jd->...id"


def attention_logits(
    q: Float[Array, "*batch i channel"],
    k: Float[Array, "*batch j channel"],
    *,
    dtype: Any = None,
) -> Float[Array, "*batch i j"]:
    """The product of each token of q with each token of k.

    Args:
        q, k: tokens of as many windows and heads.
        dtype: of the sums and the result, if not that of q.
    """
    if _few(q, k) and dtype in (None, q.dtype):
        return _attention_logits(q, k)
    return jnp.einsum(_PAIRS, q, k, preferred_element_type=dtype)


def attend(
    weights: Float[Array, "*batch i j"], values: Float[Array, "*batch j channel"]
) -> Float[Array, "*batch i channel"]:
    """For each token i the sum of the values of all tokens j, weighted.

    Args:
        weights: of the dtype of the values.
        values: tokens of as many windows and heads.
    """
    if _few(weights, values):
        return _attend(weights, values)
    return jnp.einsum(_SUMS, weights, values)


def _few(rows: Array, tokens: Array) -> bool:
    """Whether sums over tokens are quicker written out; half precisions add wider."""
    few = max(rows.shape[-2], tokens.shape[-2]) <= _FEW_TOKENS
    return few and on_cpu() and rows.dtype in (jnp.float32, jnp.float64)


def _pairs(q: Array, k: Array) -> Array:
    return jnp.einsum(_PAIRS, q, k)


def _sums(weights: Array, values: Array) -> Array:
    """The sum over j, term by term: one loop over what it reads and writes."""
    terms = (
        weights[..., j : j + 1] * values[..., j : j + 1, :]
        for j in range(values.shape[-2])
    )
    return reduce(add, terms)


def _keeping_factors(
    product: Callable[[Array, Array], Array],
) -> Callable[[Array, Array], tuple[Array, tuple[Array, Array]]]:
    """The forward pass of a product: both gradients are products of its factors."""
    return lambda left, right: (product(left, right), (left, right))


def _pairs_backward(kept: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    q, k = kept
    return _sums(cotangent, k), _sums(cotangent.mT, q)


def _sums_backward(kept: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    weights, values = kept
    return _pairs(cotangent, values), _sums(weights.mT, cotangent)


_attention_logits = jax.custom_vjp(_pairs)
_attention_logits.defvjp(_keeping_factors(_pairs), _pairs_backward)
_attend = jax.custom_vjp(_sums)
_attend.defvjp(_keeping_factors(_sums), _sums_backward)
