"""Pixel shuffle, patches, concatenation and sum of sharded fields."""

from __future__ import annotations

import jax.numpy as jnp

from credit_jax.ops import pixel_shuffle, unpatch
from credit_jax.ops.padding import Pair
from credit_jax.parallel.rows.layout import PADDING, Field, Layout
from credit_jax.parallel.rows.reshard import reshard


def pixel_shuffle_field(field: Field, scale: int) -> Field:
    """`ops.patches.pixel_shuffle` on a field; no row moves to another shard.

    Args:
        field: (batch, lat, lon, channel * scale**2), sharded along dim 1 or 2.
        scale: upscale factor; every row becomes `scale` rows of the same shard.
    """
    return Field(pixel_shuffle(field.data, scale), _taller(field.layout, scale))


def unpatch_field(field: Field, patch: Pair) -> Field:
    """`ops.patches.unpatch` on a field; no row moves to another shard.

    Args:
        field: (batch, lat, lon, channel * rows * columns of a patch), sharded along
            dim 1 or 2.
        patch: rows and columns of a patch.
    """
    layout = _taller(field.layout, patch[field.layout.dim - 1])
    return Field(unpatch(field.data, patch), layout)


def _taller(layout: Layout, scale: int) -> Layout:
    """Returns the layout with `scale` rows in place of each row."""
    rows_per_shard = [
        tuple(g * scale + i if g >= 0 else PADDING for g in rows for i in range(scale))
        for rows in layout.rows
    ]
    return layout.with_rows(rows_per_shard, layout.size * scale)


def join(field: Field, other: Field) -> Field:
    """Concatenates the channels of two fields on the layout of the first."""
    other = reshard(other, field.layout)
    return field.like(jnp.concatenate([field.data, other.data], -1))


def add(field: Field, other: Field) -> Field:
    """Adds two fields on the layout of the first."""
    return field.like(field.data + reshard(other, field.layout).data)
