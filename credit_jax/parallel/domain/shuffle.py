"""Pixel shuffle, concatenation and sum of sharded fields."""

from __future__ import annotations

import jax.numpy as jnp

from credit_jax.ops.shuffle import pixel_shuffle
from credit_jax.parallel.rows.layout import PADDING, Field
from credit_jax.parallel.rows.reshard import reshard


def pixel_shuffle_field(field: Field, scale: int) -> Field:
    """`ops.shuffle.pixel_shuffle`: every row becomes `scale` rows on the same shard."""
    rows_per_shard = [
        tuple(g * scale + i if g >= 0 else PADDING for g in rows for i in range(scale))
        for rows in field.layout.rows
    ]
    layout = field.layout.with_rows(rows_per_shard, field.layout.size * scale)
    return Field(pixel_shuffle(field.data, scale), layout)


def join(field: Field, other: Field) -> Field:
    """Concatenate channels on the layout of the first field."""
    other = reshard(other, field.layout)
    return field.like(jnp.concatenate([field.data, other.data], -1))


def add(field: Field, other: Field) -> Field:
    """Sum on the layout of the first field."""
    return field.like(field.data + reshard(other, field.layout).data)
