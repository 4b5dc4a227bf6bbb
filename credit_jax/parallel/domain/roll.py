"""Cyclic shifts of sharded fields, for Swin's shifted windows."""

from __future__ import annotations

from credit_jax.parallel.domain.select import dim_size, lat_lon_dims, select
from credit_jax.parallel.rows.layout import Field, Layout


def roll_field(
    field: Field, shift: tuple[int, int], *, out: Layout | None = None
) -> Field:
    """Shifts cyclically over latitude and longitude, as torch.roll.

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
