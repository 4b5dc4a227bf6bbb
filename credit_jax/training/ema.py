"""Exponential moving average of the parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from credit_jax.nn.model_state import BATCH_STATS


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
        ema: the average so far; initially a copy of the parameters, or of the running
            statistics of batch norms.
        params: what is averaged, after the update.
        num_updates: optimizer updates done, the present one included.
        decay: see `effective_decay`.

    Spectral-norm vectors are not averaged, as in CREDIT: the mean of unit vectors is
    not a unit vector.
    """
    keep = effective_decay(num_updates, decay)
    return jax.tree.map(
        lambda e, p: keep * e + (1.0 - keep) * p.astype(e.dtype), ema, params
    )


def wide_statistics(model_state: Any) -> Any:
    """Returns the batch-norm statistics in float32, the initial value of their average.

    Counts of batches are averaged like the other statistics, as in CREDIT; nothing
    reads them.
    """
    return jax.tree.map(lambda x: x.astype("float32"), model_state[BATCH_STATS])


def with_averaged_statistics(model_state: Any, averaged: Any) -> Any:
    """Returns the model state with averaged batch-norm statistics, if given."""
    if averaged is None:
        return model_state
    batch_stats = model_state[BATCH_STATS]
    taken = jax.tree.map(lambda x, mean: mean.astype(x.dtype), batch_stats, averaged)
    return {**model_state, BATCH_STATS: taken}
