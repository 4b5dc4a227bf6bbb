"""Rearranged sharded fields: pixel shuffle, patches, sums, rows by index, shifts."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from credit_jax.ops import pixel_shuffle, unpatch
from credit_jax.ops.padding import IntPair
from credit_jax.parallel.rows.layout import PADDING, Field, Layout
from credit_jax.parallel.rows.reshard import reshard
from credit_jax.parallel.rows.take import take_static


def pixel_shuffle_field(field: Field, scale: int) -> Field:
    """`ops.patches.pixel_shuffle` on a field; no row moves to another shard.

    Args:
        field: (batch, lat, lon, channel * scale**2), sharded along dim 1 or 2.
        scale: upscale factor; every row becomes `scale` rows of the same shard.
    """
    return Field(pixel_shuffle(field.data, scale), _taller(field.layout, scale))


def unpatch_field(field: Field, patch: IntPair) -> Field:
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


def select(
    field: Field, dim: int, index: Sequence[int], *, out: Layout | None = None
) -> Field:
    """Returns the field whose row i along `dim` is row `index[i]` of `field`.

    Args:
        field: any field.
        dim: array dim to select along; 1 is the first dim after the batch.
        index: global row indices, in any order, with repeats; -1 gives zeros.
        out: layout of the selected rows; None for equal blocks. Ignored if `dim` is not
            the sharded dim.
    """
    if dim != field.layout.dim:
        return field.like(take_static(field.data, index, dim))
    target = field.layout.to_blocks(len(index)) if out is None else out
    need = [[index[g] if g >= 0 else PADDING for g in rows] for rows in target.rows]
    data = reshard(field, target.with_rows(need, field.layout.size)).data
    return Field(data, target)


def dim_size(field: Field, dim: int) -> int:
    """Returns the global number of rows along `dim`, without padding."""
    return field.layout.size if dim == field.layout.dim else field.data.shape[dim]


def lat_lon_dims(field: Field) -> tuple[int, int]:
    """Returns the dims of latitude and longitude: the last two before the channel."""
    return field.data.ndim - 3, field.data.ndim - 2


def roll_field(
    field: Field, shift: tuple[int, int], *, out: Layout | None = None
) -> Field:
    """Shifts cyclically over latitude and longitude, as torch.roll: Swin's windows.

    out[i] = x[(i - shift) mod size]; rows beyond one pole reappear at the other.

    Args:
        field: (batch, lat, lon, channel), or with further spatial dims in front of lat.
        shift: number of rows and of columns; any integers.
        out: layout of the shifted rows of the sharded dim; None for equal blocks, or
            for the layout of `field` if rows are not shifted.
    """
    for dim, by in zip(lat_lon_dims(field), shift, strict=True):
        size = dim_size(field, dim)
        if by % size or (dim == field.layout.dim and out is not None):
            index = [(i - by) % size for i in range(size)]
            field = select(field, dim, index, out=out)
    return field
