"""Bilinear interpolation of fields, as torch.nn.functional.interpolate."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from credit_jax.ops.resize import Taps, linear_taps
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.layouts import FILLER, Field, Layout
from credit_jax.parallel.rows import fetch
from credit_jax.parallel.take import take_rows


def resize_bilinear(
    field: Field,
    size: tuple[int, int],
    *,
    align_corners: bool = False,
    out: Layout | None = None,
) -> Field:
    """Interpolate to `size` (lat, lon) points; the same size is the identity.

    Args:
        field: (batch, lat, lon, channel), rows split along dim 1.
        size: output rows and columns.
        align_corners: as in torch.
        out: layout of the output rows; default equal blocks.
    """
    dtype = np.float64 if field.data.dtype == jnp.float64 else np.float32
    rows, columns = size
    if rows != field.layout.size or out is not None:
        taps = linear_taps(
            field.layout.size, rows, align_corners=align_corners, dtype=dtype
        )
        field = _resize_rows(
            field, taps, field.layout.home(rows) if out is None else out
        )
    if columns != field.data.shape[2]:
        taps = linear_taps(
            field.data.shape[2], columns, align_corners=align_corners, dtype=dtype
        )
        data = _blend(
            field.data[:, :, taps.low],
            field.data[:, :, taps.high],
            jnp.asarray(taps.weight).reshape(1, 1, -1, 1),
        )
        field = field.like(data)
    return field


def _resize_rows(field: Field, taps: Taps, target: Layout) -> Field:
    """Fetch the rows that each shard's output rows read, then blend two of them."""
    spans = [_span(held, taps) for held in target.held]
    need = field.layout.with_rows(
        [range(low, high + 1) if high >= 0 else [] for low, high in spans],
        field.layout.size,
    )
    local = fetch(field, need).data
    low, high = _local_taps(target, taps, spans)
    axis, dim = target.axis, target.dim
    weight = np.asarray([[taps.weight[max(g, 0)] for g in h] for h in target.held])
    mine = jnp.asarray(weight)[axis_index(axis)].reshape(1, -1, 1, 1)
    data = _blend(
        take_rows(local, low, axis, dim), take_rows(local, high, axis, dim), mine
    )
    return Field(data, target)


def _span(held: tuple[int, ...], taps: Taps) -> tuple[int, int]:
    """First and last input row that a shard's output rows read; (0, -1) if none."""
    rows = [g for g in held if g >= 0]
    if not rows:
        return 0, FILLER
    return int(taps.low[rows].min()), int(taps.high[rows].max())


def _local_taps(
    target: Layout, taps: Taps, spans: list[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the two taps of each output row within the fetched rows."""
    low = np.zeros((target.num_shards, target.length), np.int32)
    high = np.zeros_like(low)
    for d, (held, (first, _)) in enumerate(zip(target.held, spans, strict=True)):
        for i, g in enumerate(held):
            if g >= 0:
                low[d, i], high[d, i] = taps.low[g] - first, taps.high[g] - first
    return low, high


def _blend(low: Array, high: Array, weight: Array) -> Array:
    weight = weight.astype(low.dtype)
    return low * (1 - weight) + high * weight
