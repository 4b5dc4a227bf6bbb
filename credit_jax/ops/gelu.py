"""The exact GELU, which saves one array for the backward pass."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import erf
from jaxtyping import Array, Float


@jax.custom_jvp
def gelu(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Returns `x * Phi(x)` with the normal CDF Phi, as torch.nn.functional.gelu.

    Computed in float32 or wider, returned in the dtype of `x`. A custom JVP saves one
    array for the backward pass, where differentiating the formula would save four;
    these are the widest activations of a transformer.

    Args:
        x: array of any shape.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (wide * _distribution(wide)).astype(x.dtype)


@gelu.defjvp
def _gelu_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (tangent,) = primals, tangents
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    density = jnp.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
    slope = _distribution(wide) + wide * density
    return gelu(x), slope.astype(x.dtype) * tangent


def _distribution(x: Array) -> Array:
    """Cumulative distribution function of the standard normal distribution."""
    return 0.5 * (1 + erf(x * math.sqrt(0.5)))
