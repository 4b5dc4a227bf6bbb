"""The two batched matrix products of attention within windows."""

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
    """Returns the dot product of each query with each key of its window.

    Args:
        q: (batch..., i, channel), where batch stands for windows and heads.
        k: (batch..., j, channel).
        dtype: dtype of the sums and of the result (`preferred_element_type`); None
            leaves it to `jnp.einsum`.
    """
    return jnp.einsum("...id,...jd->...ij", q, k, preferred_element_type=dtype)


def attend(
    weights: Float[Array, "*batch i j"], values: Float[Array, "*batch j channel"]
) -> Float[Array, "*batch i channel"]:
    """Returns the weighted sum of the values of a window for each query.

    Args:
        weights: (batch..., i, j), attention weights in the dtype of the values.
        values: (batch..., j, channel), where batch stands for windows and heads.
    """
    return jnp.einsum("...ij,...jd->...id", weights, values)
