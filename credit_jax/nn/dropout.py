"""Dropout by global position: the mask is the same on every mesh."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from credit_jax.nn.context import Context
from credit_jax.ops.dropout import drop, keep_mask
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.rows.layout import Field


def drop_units(
    x: Float[Array, "batch rows lon unit"],
    field: Field,
    context: Context,
    rate: float,
    units: int,
) -> Float[Array, "batch rows lon unit"]:
    """Dropout with a mask by global sample, row, column and unit.

    Args:
        x: (batch, rows, lon, unit), the local units on the rows of `field`.
        field: gives the global rows and columns.
        context: if it has no key (evaluation), `x` is returned.
        rate: probability of dropping.
        units: global number of units; if `x` has fewer, its units are sharded over tp.
    """
    if context.key is None or rate == 0.0:
        return x
    batch, _, columns, local = x.shape
    sample = context.samples(batch)
    high = sample[:, None] * field.layout.size + field.layout.global_rows()[None]
    unit = jnp.arange(local)
    if local < units:
        unit = axis_index(context.axes.tensor) * local + unit
    low = field.layout.columns(columns)[..., None] * units + unit[None, None]
    keep = keep_mask(context.key, high[:, :, None, None], low[None], rate)
    return drop(x, keep, rate)


def drop_attention(
    weights: Float[Array, "batch windows head tokens tokens"],
    window_rows: Int[Array, " windows"],
    window_columns: Int[Array, " windows"],
    context: Context,
    rate: float,
    heads: int,
    rows: int,
    *,
    part: Array | int | None = None,
) -> Float[Array, "batch windows head tokens tokens"]:
    """Dropout with a mask by global sample, window, head and pair of tokens.

    Args:
        weights: (batch, windows, head, tokens, tokens), attention weights of the local
            windows and heads.
        window_rows, window_columns: (windows,), global position of each local window.
        context: if it has no key (evaluation), `weights` is returned.
        rate: probability of dropping.
        heads: global number of heads.
        rows: global number of rows of windows.
        part: index of the local heads among the equal parts of all heads; None for the
            index of this device along tp.
    """
    if context.key is None or rate == 0.0:
        return weights
    batch, windows, local, tokens, _ = weights.shape
    sample = context.samples(batch)
    high = sample[:, None] * rows + window_rows[None, :]
    part = axis_index(context.axes.tensor) if part is None else part
    head = part * local + jnp.arange(local)
    low = window_columns[:, None] * heads + head[None, :]
    low = low[:, :, None] * tokens**2 + jnp.arange(tokens**2)[None, None, :]
    low = low.reshape(1, windows, local, tokens, tokens)
    keep = keep_mask(context.key, high[:, :, None, None, None], low, rate)
    return drop(weights, keep, rate)
