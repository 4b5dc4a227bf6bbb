"""Padding of sharded fields beyond the poles and around the globe, and cropping."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from credit_jax.ops.padding import IntPair
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.domain.rearrange import dim_size, lat_lon_dims, select
from credit_jax.parallel.rows.layout import Field, Layout


def pad_globe(
    field: Field, *, mode: str, lat: IntPair, lon: IntPair, out: Layout | None = None
) -> Field:
    """Adds rows beyond the poles and periodic columns, as CREDIT's TensorPadding.

    In mode "earth" the rows beyond a pole are the rows nearest to it, rolled by half
    the globe in longitude. In mode "mirror" rows are reflected without repeating the
    edge row.

    Args:
        field: (batch, lat, lon, channel), or with further spatial dims in front of lat;
            sharded along any spatial dim.
        mode: "earth" or "mirror".
        lat: number of rows to add (north, south).
        lon: number of columns to add (west, east).
        out: layout of the padded rows of the sharded dim; None for equal blocks.

    Raises:
        ValueError: any other mode, or more rows or columns than the field has.
    """
    lat_dim, lon_dim = lat_lon_dims(field)
    rows, columns = dim_size(field, lat_dim), dim_size(field, lon_dim)
    check_padding(mode, lat, lon, rows, columns)
    # The row that each row of the padded field is a copy of.
    edge = 1 if mode == "mirror" else 0
    north = [lat[0] - 1 - i + edge for i in range(lat[0])]
    south = [rows - 1 - i - edge for i in range(lat[1])]
    source = [*north, *range(rows), *south]
    if lat_dim == field.layout.dim:
        field = select(field, lat_dim, source, out=out)
        if mode == "earth" and any(lat):
            field = field.like(_turn_beyond_poles(field.data, field.layout, lat, rows))
    elif any(lat):
        added = select(field, lat_dim, [*north, *south])
        if mode == "earth":
            turned = [(i - columns // 2) % columns for i in range(columns)]
            layout = field.layout if field.layout.dim == lon_dim else None
            added = select(added, lon_dim, turned, out=layout)
        parts = jnp.split(added.data, [lat[0]], lat_dim)
        padded = jnp.concatenate([parts[0], field.data, parts[1]], lat_dim)
        field = field.like(padded)
    index = [i % columns for i in range(-lon[0], columns + lon[1])]
    return select(field, lon_dim, index, out=out)


def check_padding(
    mode: str, lat: IntPair, lon: IntPair, rows: int, columns: int
) -> None:
    """Raises ValueError if the field has too few rows or columns for the padding."""
    if mode not in ("earth", "mirror"):
        raise ValueError(f"padding_conf.mode is {mode!r}; expected 'earth' or 'mirror'")
    most = rows if mode == "earth" else rows - 1
    if max(lat) > most or min(lat) < 0:
        raise ValueError(
            f"padding_conf.pad_lat is {list(lat)}; {mode} padding of {rows} rows can "
            f"add 0 to {most} rows at each pole"
        )
    if max(lon) > columns or min(lon) < 0:
        raise ValueError(
            f"padding_conf.pad_lon is {list(lon)}; a field of {columns} columns can be "
            f"padded with 0 to {columns} columns on each side"
        )


def _turn_beyond_poles(data: Array, target: Layout, lat: IntPair, rows: int) -> Array:
    """Rolls the rows beyond the poles by half the globe in longitude."""
    needed = np.asarray(target.rows)
    beyond = (needed >= 0) & ((needed < lat[0]) | (needed >= lat[0] + rows))
    lon_dim = target.dim + 1
    turned = jnp.roll(data, data.shape[lon_dim] // 2, lon_dim)
    shape = (-1,) + (1,) * (data.ndim - 1 - target.dim)
    mine = jnp.asarray(beyond)[axis_index(target.axis)]
    mine = mine.reshape((1,) * target.dim + shape)
    return jnp.where(mine, turned, data)


def crop_globe(
    field: Field, *, lat: IntPair, lon: IntPair, out: Layout | None = None
) -> Field:
    """Removes rows (north, south) and columns (west, east): the inverse of `pad_globe`.

    Args:
        field: (batch, lat, lon, channel), or with further spatial dims in front of lat.
        lat, lon: number of rows and of columns to remove at each end.
        out: layout of the remaining rows of the sharded dim; None for equal blocks.
    """
    for dim, (low, high) in zip(lat_lon_dims(field), (lat, lon), strict=True):
        index = range(low, dim_size(field, dim) - high)
        field = select(field, dim, index, out=out)
    return field
