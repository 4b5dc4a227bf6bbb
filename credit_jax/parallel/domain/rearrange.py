"""Padding, cropping and rearrangement of sharded fields."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from credit_jax.ops import pixel_shuffle, unpatch
from credit_jax.ops.space_to_depth import IntPair
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import PADDING, Field, Layout
from credit_jax.parallel.rows.take import take_static


def pixel_shuffle_field(field: Field, scale: int) -> Field:
    """`ops.space_to_depth.pixel_shuffle` on a field; no row moves to another shard."""
    return Field(pixel_shuffle(field.data, scale), _taller(field.layout, scale))


def unpatch_field(field: Field, patch: IntPair) -> Field:
    """`ops.space_to_depth.unpatch` on a field; no row moves to another shard."""
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
    """Returns the field whose row i along `dim` is row `index[i]`; -1 gives zeros."""
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
    """Shifts cyclically: out[i] = x[(i - shift) mod size] over latitude, longitude."""
    # As torch.roll: rows beyond one pole reappear at the other (Swin's windows).
    for dim, by in zip(lat_lon_dims(field), shift, strict=True):
        size = dim_size(field, dim)
        if by % size or (dim == field.layout.dim and out is not None):
            index = [(i - by) % size for i in range(size)]
            field = select(field, dim, index, out=out)
    return field


def pad_globe(
    field: Field, *, mode: str, lat: IntPair, lon: IntPair, out: Layout | None = None
) -> Field:
    """Adds rows beyond the poles and periodic columns, as CREDIT's TensorPadding."""
    lat_dim, lon_dim = lat_lon_dims(field)
    rows, columns = dim_size(field, lat_dim), dim_size(field, lon_dim)
    check_padding(mode, lat, lon, rows, columns)
    # The row that each row of the padded field is a copy of.
    # In mode "earth" the rows beyond a pole are the rows nearest to it, rolled by half
    # the globe in longitude. In mode "mirror" rows are reflected without the edge row.
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
    """Removes rows (north, south), columns (west, east): the inverse of `pad_globe`."""
    for dim, (low, high) in zip(lat_lon_dims(field), (lat, lon), strict=True):
        index = range(low, dim_size(field, dim) - high)
        field = select(field, dim, index, out=out)
    return field
