"""The product of two tiles within a kernel."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array


def dot(left: Array, right: Array) -> Array:
    """Returns `left @ right`, summed in float32 or wider, without TF32 rounding."""
    wide = jnp.promote_types(left.dtype, jnp.float32)
    precision = lax.Precision.HIGHEST if left.dtype == wide else None
    return jnp.dot(left, right, precision=precision, preferred_element_type=wide)
