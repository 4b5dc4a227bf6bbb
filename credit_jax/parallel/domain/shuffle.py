"""Pixel shuffle, patches, concatenation and sum of sharded fields."""

from __future__ import annotations

import jax.numpy as jnp

from credit_jax.ops.padding import Pair
from credit_jax.ops.shuffle import pixel_shuffle, unpatch
from credit_jax.parallel.rows.layout import PADDING, Field, Layout
from credit_jax.parallel.rows.reshard import reshard


def pixel_shuffle_field(field: Field, scale: int) -> Field:
    """`ops.shuffle.pixel_shuffle`: every row becomes `scale` rows on the same shard."""
    return Field(pixel_shuffle(field.data, scale), _taller(field.layout, scale))


def unpatch_field(field: Field, patch: Pair) -> Field:
    """`ops.shuffle.unpatch`: every row becomes rows of a patch on the same shard.

    Args:
        field: (batch, lat, lon, channel), rows split along dim 1 or 2.
        patch: rows and columns.
    """
    layout = _taller(field.layout, patch[field.layout.dim - 1])
    return Field(unpatch(field.data, patch), layout)


def _taller(layout: Layout, scale: int) -> Layout:
    """Layout of `scale` rows in place of each row."""
    rows_per_shard = [
        tuple(g * scale + i if g >= 0 else PADDING for g in rows for i in range(scale))
        for rows in layout.rows
    ]
    return layout.with_rows(rows_per_shard, layout.size * scale)


def join(field: Field, other: Field) -> Field:
    """Concatenate channels on the layout of the first field."""
    other = reshard(other, field.layout)
    return field.like(jnp.concatenate([field.data, other.data], -1))


def add(field: Field, other: Field) -> Field:
    """Sum on the layout of the first field."""
    return field.like(field.data + reshard(other, field.layout).data)
