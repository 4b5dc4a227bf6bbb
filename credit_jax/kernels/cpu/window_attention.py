"""The two products of window attention on CPU, unrolled for windows of few tokens.

XLA calls Eigen for every matrix of a batched product, with an overhead of 2 us each; an
unrolled sum is part of a fusion. Measured with heads of 16 and 32 channels, 2026-11,
jax 0.10.2, 2 cores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from credit_jax import ops
from credit_jax.ops.custom_vjp import custom_vjp

_FEW_TOKENS = 16


def attention_logits(
    q: Float[Array, "*batch i channel"],
    k: Float[Array, "*batch j channel"],
    *,
    dtype: Any = None,
) -> Float[Array, "*batch i j"]:
    """`ops.attention_logits`; for few tokens, its gradients are unrolled sums."""
    if _few_tokens(q, k) and dtype in (None, q.dtype):
        return _logits(q, k)
    return ops.attention_logits(q, k, dtype=dtype)


def attend(
    weights: Float[Array, "*batch i j"], values: Float[Array, "*batch j channel"]
) -> Float[Array, "*batch i channel"]:
    """`ops.attend`; for few tokens, it is an unrolled sum."""
    if _few_tokens(weights, values):
        return _attend(weights, values)
    return ops.attend(weights, values)


def _few_tokens(rows: Array, tokens: Array) -> bool:
    """Whether to unroll; not in 16-bit dtypes, whose products are summed in float32."""
    few = max(rows.shape[-2], tokens.shape[-2]) <= _FEW_TOKENS
    return few and rows.dtype in (jnp.float32, jnp.float64)


def _pairs(q: Array, k: Array) -> Array:
    return ops.attention_logits(q, k)


def _unrolled(weights: Array, values: Array) -> Array:
    """Returns the sum over j of weights[i, j] * values[j], as one elementwise loop."""
    terms = (
        weights[..., j : j + 1] * values[..., j : j + 1, :]
        for j in range(values.shape[-2])
    )
    return reduce(add, terms)


def _keeping_factors(
    product: Callable[[Array, Array], Array],
) -> Callable[[Array, Array], tuple[Array, tuple[Array, Array]]]:
    """Returns the forward function of a custom VJP that saves both factors."""
    return lambda left, right: (product(left, right), (left, right))


def _logits_backward(
    saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    q, k = saved
    return _unrolled(cotangent, k), _unrolled(cotangent.mT, q)


def _attend_backward(
    saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    weights, values = saved
    return _pairs(cotangent, values), _unrolled(weights.mT, cotangent)


_logits = custom_vjp(_pairs)
_logits.defvjp(_keeping_factors(_pairs), _logits_backward)
_attend = custom_vjp(_unrolled)
_attend.defvjp(_keeping_factors(_unrolled), _attend_backward)
