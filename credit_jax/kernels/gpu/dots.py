"""The product of two tiles within a kernel."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array


def dot(left: Array, right: Array) -> Array:
    """Summed in float32 or wider; factors in float32 are not rounded."""
    wide = jnp.promote_types(left.dtype, jnp.float32)
    precision = lax.Precision.HIGHEST if left.dtype == wide else None
    return jnp.dot(left, right, precision=precision, preferred_element_type=wide)
