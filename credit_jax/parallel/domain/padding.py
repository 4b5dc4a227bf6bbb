"""Padding over the poles and around the globe, and cropping."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from credit_jax.ops.conv import Pair
from credit_jax.parallel.collectives import axis_index
from credit_jax.parallel.layouts import Field, Layout
from credit_jax.parallel.rows import fetch
from credit_jax.parallel.take import take_static


def pad_globe(
    field: Field, *, mode: str, lat: Pair, lon: Pair, out: Layout | None = None
) -> Field:
    """CREDIT's TensorPadding: rows beyond the poles, columns around the globe.

    earth: the rows beyond a pole are the first rows on its other side, half a turn away
    in longitude; mirror: rows are reflected without repeating the edge row. Columns are
    periodic.

    Args:
        field: (batch, lat, lon, channel), rows split along dim 1.
        mode: "earth" or "mirror".
        lat: rows to add (north, south).
        lon: columns to add (west, east).
        out: layout of the padded rows; default equal blocks.

    Raises:
        ValueError: another mode, or more rows or columns than there are.
    """
    rows, columns = field.layout.size, field.data.shape[2]
    check_padding(mode, lat, lon, rows, columns)
    source = _source_rows(mode, lat, rows)
    size = len(source)
    target = field.layout.home(size) if out is None else out
    need = [[source[g] if g >= 0 else -1 for g in held] for held in target.held]
    data = fetch(field, target.with_rows(need, rows)).data
    if mode == "earth" and any(lat):
        data = _turn_beyond_poles(data, target, lat, rows)
    index = [i % columns for i in range(-lon[0], columns + lon[1])]
    return Field(take_static(data, index, 2), target)


def check_padding(mode: str, lat: Pair, lon: Pair, rows: int, columns: int) -> None:
    """Raise ValueError where the padding cannot be made from the field."""
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


def _source_rows(mode: str, lat: Pair, rows: int) -> list[int]:
    """The row that each padded row is copied from."""
    edge = 1 if mode == "mirror" else 0
    north = [lat[0] - 1 - i + edge for i in range(lat[0])]
    south = [rows - 1 - i - edge for i in range(lat[1])]
    return [*north, *range(rows), *south]


def _turn_beyond_poles(data: Array, target: Layout, lat: Pair, rows: int) -> Array:
    """Half a turn in longitude for the rows beyond the poles."""
    held = np.asarray(target.held)
    beyond = (held >= 0) & ((held < lat[0]) | (held >= lat[0] + rows))
    turned = jnp.roll(data, data.shape[2] // 2, 2)
    mine = jnp.asarray(beyond)[axis_index(target.axis)].reshape(1, -1, 1, 1)
    return jnp.where(mine, turned, data)


def crop_globe(
    field: Field, *, lat: Pair, lon: Pair, out: Layout | None = None
) -> Field:
    """Remove rows (north, south) and columns (west, east): the inverse of `pad_globe`.

    Args:
        field: (batch, lat, lon, channel).
        lat, lon: how many to remove at each end.
        out: layout of the remaining rows; default equal blocks.
    """
    size = field.layout.size - sum(lat)
    target = field.layout.home(size) if out is None else out
    need = [[g + lat[0] if g >= 0 else -1 for g in held] for held in target.held]
    data = fetch(field, target.with_rows(need, field.layout.size)).data
    width = data.shape[2]
    return Field(data[:, :, lon[0] : width - lon[1]], target)
