"""Reads mean fields for anomalies from a file that a config names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.axes import horizontal, level_values
from credit_jax.named_fields.coordinates import (
    UNKNOWN,
    CoordinateValues,
    GridCoordinates,
    Kind,
    as_values,
    places_of,
    take_places,
)


def read_fields(
    path: str | Path,
    key: str,
    open_files: OpenFiles,
    data: GridCoordinates = UNKNOWN,
    levels: Mapping[str, CoordinateValues | None] = MappingProxyType({}),
) -> dict[str, np.ndarray]:
    """Reads all variables of a NetCDF or Zarr file, in float32, by name.

    They are in the order of the data, where the file has coordinates.

    Args:
        path: path of the file; environment variables are expanded.
        key: dotted config key of the path, for errors.
        open_files: cache of open files.
        data: latitudes and longitudes of the data.
        levels: name of a variable -> values of its levels in the data.

    Returns:
        (lat, lon) or (level, lat, lon) fields.

    Raises:
        ValueError: there is no such file, or a variable has other dims or other
            coordinates.
    """
    place = Path(os.path.expandvars(str(path)))
    if not place.exists():
        raise ValueError(f"{key}: {place} does not exist")
    dataset = open_files.dataset(place)
    fields = {
        str(name): np.asarray(values.values, np.float32)
        for name, values in dataset.data_vars.items()
    }
    wrong = {
        name: field.shape for name, field in fields.items() if field.ndim not in (2, 3)
    }
    if wrong:
        raise ValueError(
            f"{key}: {place}: expected (lat, lon) or (level, lat, lon) fields, got "
            f"{wrong}"
        )
    space_axes: dict[Kind, Any] = dict(
        zip(
            ("latitude", "longitude"),
            horizontal(dataset, f"{key}: {place}"),
            strict=True,
        )
    )
    for name, field in fields.items():
        axes = dataset[name]
        where = f"{key}: {place}: {name}", data.where
        coordinates = levels.get(name), data.latitude, data.longitude
        kinds: tuple[Kind, ...] = ("level", "latitude", "longitude")
        first = len(kinds) - field.ndim
        for axis, (kind, known) in enumerate(
            list(zip(kinds, coordinates, strict=True))[first:]
        ):
            dim = axes.dims[axis]
            space_axis, stored = space_axes.get(kind), None
            if kind == "level" and dim in axes.coords:
                stored = level_values(axes[dim], where[0])
            elif space_axis is not None and space_axis.dims == (dim,):
                stored = as_values(space_axis.values)
            elif dim in axes.coords:
                stored = as_values(axes[dim].values)
            places = places_of(known, stored, kind, *where)
            fields[name] = take_places(fields[name], places, axis)
    return fields
