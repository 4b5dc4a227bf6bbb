"""Normalization over channels."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from credit_jax.ops.custom_vjp import custom_vjp
from credit_jax.ops.dense import scale_and_shift


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
    return _forward(x, epsilon)[0]


def _forward(x: Array, epsilon: float) -> tuple[Array, tuple[Array, Array]]:
    centered = x - _mean(x)
    inverse = lax.rsqrt(_mean(centered * centered) + epsilon)
    normal = centered * inverse
    return normal, (normal, inverse)


def _backward(
    epsilon: float, saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array]:
    del epsilon
    normal, inverse = saved
    along = normal * _mean(normal * cotangent)
    return (inverse * (cotangent - _mean(cotangent) - along),)


_normalize.defvjp(_forward, _backward)


def _mean(x: Array) -> Array:
    return x.mean(-1, keepdims=True)
