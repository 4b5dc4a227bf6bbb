"""Per-channel bias and scale, computed in float32 or wider."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float


def add_bias(
    x: Float[Array, "*batch channel"], bias: Float[Array, " channel"]
) -> Float[Array, "*batch channel"]:
    """Returns `x + bias` in the dtype of `x`.

    Both the sum and the gradient of the bias are computed in float32 or wider. That
    gradient is a sum over all points, and a 16-bit sum stops growing after a few
    hundred terms.
    """
    wide = jnp.promote_types(x.dtype, jnp.float32)
    lead = (1,) * (x.ndim - 1)
    return (x.astype(wide) + bias.astype(wide).reshape(*lead, -1)).astype(x.dtype)


def scale_and_shift(
    normal: Float[Array, "*batch channel"],
    scale: Float[Array, " channel"],
    bias: Float[Array, " channel"],
) -> Float[Array, "*batch channel"]:
    """Returns `normal * scale + bias`, all in the dtype of `normal`."""
    lead = (1,) * (normal.ndim - 1)
    scale, bias = (a.astype(normal.dtype).reshape(*lead, -1) for a in (scale, bias))
    return normal * scale + bias
