"""Layer normalization on CPU, with means as matrix-vector products."""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float

from credit_jax.ops.custom_vjp import custom_vjp
from credit_jax.ops.dense import scale_and_shift
from credit_jax.ops.norm import standardize, standardize_gradient


def layer_norm(
    x: Float[Array, "*batch channel"],
    scale: Float[Array, " channel"],
    bias: Float[Array, " channel"],
    *,
    epsilon: float = 1e-5,
) -> Float[Array, "*batch channel"]:
    """`ops.layer_norm`; if it is differentiated, means are matrix-vector products."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return scale_and_shift(_normalize(wide, epsilon), scale, bias).astype(x.dtype)


@partial(custom_vjp, nondiff_argnums=(1,))
def _normalize(x: Array, epsilon: float) -> Array:
    return standardize(x, epsilon, lambda x: x.mean(-1, keepdims=True))[0]


def _forward(x: Array, epsilon: float) -> tuple[Array, tuple[Array, Array]]:
    normal, inverse = standardize(x, epsilon, _mean)
    return normal, (normal, inverse)


def _backward(
    epsilon: float, saved: tuple[Array, Array], cotangent: Array
) -> tuple[Array]:
    return (standardize_gradient(*saved, cotangent, _mean),)


_normalize.defvjp(_forward, _backward)


def _mean(x: Array) -> Array:
    """Mean over the last dim as a matrix-vector product.

    XLA broadcasts the result of a reduction to all channels in memory before it is used
    (jax 0.10.2, 2 cores; a field of 18432 x 128 with its gradient: 52 -> 21 ms).
    """
    channels = x.shape[-1]
    flat = x.reshape(-1, channels) @ jnp.full((channels, 1), 1 / channels, x.dtype)
    return flat.reshape(*x.shape[:-1], 1)
