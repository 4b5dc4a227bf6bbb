"""Exponential moving average of the parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree


def effective_decay(num_updates: Int[Array, ""], decay: float) -> Float[Array, ""]:
    """`min(decay, (1 + s) / (10 + s))`: a smaller decay during the first updates.

    Args:
        num_updates: s, optimizer updates done, the present one included.
        decay: upper limit.
    """
    steps = jnp.asarray(num_updates, jnp.float32)
    return jnp.minimum(jnp.float32(decay), (1.0 + steps) / (10.0 + steps))


def update_ema(
    ema: PyTree[Array],
    params: PyTree[Array],
    num_updates: Int[Array, ""],
    decay: float,
) -> PyTree[Array]:
    """`decay_s * ema + (1 - decay_s) * params`, elementwise on local shards, float32.

    Args:
        ema: the average so far; initially a copy of the parameters.
        params: the parameters after the update.
        num_updates: optimizer updates done, the present one included.
        decay: see `effective_decay`.

    The model's state (spectral norm vectors, batch statistics) is not averaged:
    validation uses the averaged parameters with the current state, as CREDIT does.
    """
    keep = effective_decay(num_updates, decay)
    return jax.tree.map(
        lambda e, p: keep * e + (1.0 - keep) * p.astype(e.dtype), ema, params
    )
