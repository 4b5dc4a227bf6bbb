"""The two products of attention within windows."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float


def attention_logits(
    q: Float[Array, "*batch i channel"],
    k: Float[Array, "*batch j channel"],
    *,
    dtype: Any = None,
) -> Float[Array, "*batch i j"]:
    """Dot product of each query with each key of its window.

    Args:
        q, k: tokens of as many windows and heads.
        dtype: of the sums and the result, if not that of q.
    """
    return jnp.einsum("...id,...jd->...ij", q, k, preferred_element_type=dtype)


def attend(
    weights: Float[Array, "*batch i j"], values: Float[Array, "*batch j channel"]
) -> Float[Array, "*batch i channel"]:
    """Weighted sum over the values of a window, one for each query.

    Args:
        weights: attention weights, of the dtype of the values.
        values: tokens of as many windows and heads.
    """
    return jnp.einsum("...ij,...jd->...id", weights, values)
