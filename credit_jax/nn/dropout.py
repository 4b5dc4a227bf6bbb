"""Dropout by global position, so that its mask is the same on every mesh."""

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
    """Dropout by global sample, row, column and unit.

    Args:
        x: local units on the rows of the field.
        field: gives the rows.
        context: without a key, in evaluation, nothing is dropped.
        rate: probability of dropping.
        units: number of all units; those of `x` are split over tp if they are fewer.
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
    """Dropout by global sample, window, head and pair of tokens.

    Args:
        weights: of the local windows and of the local heads.
        window_rows, window_columns: global position of each local window.
        context: without a key, in evaluation, nothing is dropped.
        rate: probability of dropping.
        heads: number of all heads.
        rows: number of all rows of windows.
        part: which of the equal parts of all heads is local; by default that of this
            device's tp coordinate.
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
