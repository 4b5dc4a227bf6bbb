"""Rows of a field by their global number, along any dim, split or not."""

from __future__ import annotations

from collections.abc import Sequence

from credit_jax.parallel.rows.layout import PADDING, Field, Layout
from credit_jax.parallel.rows.reshard import reshard
from credit_jax.parallel.rows.take import take_static


def select(
    field: Field, dim: int, index: Sequence[int], *, out: Layout | None = None
) -> Field:
    """The field whose row i along `dim` is row `index[i]` of the given one.

    Args:
        field: any field.
        dim: array dim to choose along, 1 being the first after the batch.
        index: global row numbers, in any order, also repeated; -1 is a row of zeros.
        out: layout of the chosen rows; default equal blocks. For the split dim only.
    """
    if dim != field.layout.dim:
        return field.like(take_static(field.data, index, dim))
    target = field.layout.to_blocks(len(index)) if out is None else out
    need = [[index[g] if g >= 0 else PADDING for g in rows] for rows in target.rows]
    data = reshard(field, target.with_rows(need, field.layout.size)).data
    return Field(data, target)


def dim_size(field: Field, dim: int) -> int:
    """Number of global rows along `dim`, without padding."""
    return field.layout.size if dim == field.layout.dim else field.data.shape[dim]


def lat_lon_dims(field: Field) -> tuple[int, int]:
    """The dims of latitude and longitude: the last two before the channel."""
    return field.data.ndim - 3, field.data.ndim - 2
