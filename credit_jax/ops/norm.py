"""Normalization over channels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.custom_vjp import custom_vjp
from credit_jax.ops.dense import scale_and_shift

# (..., channel) -> (..., 1)
Mean = Callable[[Array], Array]


def layer_norm(
    x: Float[Array, "*batch channel"],
    scale: Float[Array, " channel"],
    bias: Float[Array, " channel"],
    *,
    epsilon: float = 1e-5,
) -> Float[Array, "*batch channel"]:
    """Layer normalization over channels.

    (x - mean) / sqrt(variance + epsilon) * scale + bias

    The variance is biased, as in CREDIT's LayerNorm and torch.nn.LayerNorm. Statistics
    are computed in float32 or wider, the result has the dtype of `x`. One array of the
    size of `x` is saved for the backward pass: the normalized values.

    Args:
        x: (..., channel).
        scale, bias: (channel,).
        epsilon: added to the variance.
    """
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return scale_and_shift(_normalize(wide, epsilon), scale, bias).astype(x.dtype)


@partial(custom_vjp, nondiff_argnums=(1,))
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
    """Shifts and scales the last dim to mean 0 and variance 1.

    Args:
        x: (..., channel), float32 or wider.
        epsilon: added to the variance.
        mean: (..., channel) -> (..., 1), the mean over the last dim.

    Returns:
        The normalized array, and 1 / sqrt(variance + epsilon), (..., 1).
    """
    centered = x - mean(x)
    inverse = lax.rsqrt(mean(centered * centered) + epsilon)
    return centered * inverse, inverse


def standardize_gradient(
    normal: Array, inverse: Array, cotangent: Array, mean: Mean
) -> Array:
    """Returns the gradient of `standardize` with respect to x.

    inverse * (cotangent - mean(cotangent) - normal * mean(normal * cotangent))

    Args:
        normal, inverse: as returned by `standardize`.
        cotangent: (..., channel), of the normalized array.
        mean: as for `standardize`.
    """
    along = normal * mean(normal * cotangent)
    return inverse * (cotangent - mean(cotangent) - along)


def _mean(x: Array) -> Array:
    return x.mean(-1, keepdims=True)
