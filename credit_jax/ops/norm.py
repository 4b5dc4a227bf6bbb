"""Normalization over channels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.affine import scale_and_shift

# (..., channel) -> (..., 1)
Mean = Callable[[Array], Array]


def layer_norm(
    x: Float[Array, "*batch channel"],
    scale: Float[Array, " channel"],
    bias: Float[Array, " channel"],
    *,
    epsilon: float = 1e-5,
) -> Float[Array, "*batch channel"]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over channels.

    The variance is biased, as in CREDIT's LayerNorm and torch.nn.LayerNorm. Statistics
    are taken in float32 or wider. The backward pass keeps one field, the normalized
    one.

    Args:
        x: (..., channel).
        scale, bias: (channel,).
        epsilon: inside the root.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return scale_and_shift(_normalize(wide, epsilon), scale, bias).astype(x.dtype)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _normalize(x: Array, epsilon: float) -> Array:
    return standardize(x, epsilon, _mean)[0]


def _forward(x: Array, epsilon: float) -> tuple[Array, tuple[Array, Array]]:
    normal, inverse = standardize(x, epsilon, _mean)
    return normal, (normal, inverse)


def _backward(
    epsilon: float, saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array]:
    return (standardize_gradient(*saved, cotangent, _mean),)


_normalize.defvjp(_forward, _backward)


def standardize(x: Array, epsilon: float, mean: Mean) -> tuple[Array, Array]:
    """Mean 0 and variance 1 over the last dim.

    Args:
        x: (..., channel), float32 or wider.
        epsilon: inside the root.
        mean: over the last dim, which it keeps with length 1.

    Returns:
        The normalized array, and 1 / sqrt(variance + epsilon), (..., 1).
    """
    centered = x - mean(x)
    inverse = lax.rsqrt(mean(centered * centered) + epsilon)
    return centered * inverse, inverse


def standardize_gradient(
    normal: Array, inverse: Array, cotangent: Array, mean: Mean
) -> Array:
    """Gradient by x of `standardize`.

    inverse * (cotangent - mean(cotangent) - normal * mean(normal * cotangent))
    """
    along = normal * mean(normal * cotangent)
    return inverse * (cotangent - mean(cotangent) - along)


def _mean(x: Array) -> Array:
    return x.mean(-1, keepdims=True)
