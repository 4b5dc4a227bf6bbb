"""The fields of a package: latitudes and longitudes, and static fields, as NetCDF."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from credit_jax.data.sources.file_source import FileSource
from credit_jax.data.sources.source import Source
from credit_jax.data.sources.tisr import open_axes
from credit_jax.io.netcdf import write_netcdf
from credit_jax.io.open_files import OpenFiles, opened
from credit_jax.named_fields.units import DEGREES

_CURVED = ("y", "x")


def write_grid(path: Path, latitude: np.ndarray, longitude: np.ndarray) -> None:
    """Writes latitudes and longitudes, (lat,) and (lon,), or both (y, x); degrees."""
    arrays = {"latitude": latitude, "longitude": longitude}
    coordinates = {
        name: (
            _CURVED if values.ndim == 2 else (name,),
            values,
            {key: DEGREES[name][key] for key in ("units", "standard_name")},
        )
        for name, values in arrays.items()
    }
    _save(xr.Dataset(coords=coordinates), path)


def read_grid(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Latitudes and longitudes of `write_grid`."""
    with opened(path) as dataset:
        latitude, longitude = (dataset[name].values for name in DEGREES)
    return latitude, longitude


def write_axes(path: Path, source: str) -> None:
    """Copies the latitudes and longitudes that a computed source reads from a file.

    Args:
        path: path of the new file.
        source: path in the config.
    """
    arrays = open_axes(source, OpenFiles())
    _save(xr.Dataset({str(axis.name): axis.variable for axis in arrays}), path)


def write_static(path: Path, source: Source) -> None:
    """Writes the static variables of a source with the values in its files.

    Raises:
        ValueError: the source reads no files.
    """
    if not isinstance(source, FileSource):
        raise ValueError(
            f"data.source.{source.name}: static fields of dataset_type "
            f"{source.config.dataset_type!r} are not copied"
        )
    parts: list[xr.Dataset] = []
    for kind, name in source.files:
        if kind == "static":
            file = source.reader.open(source.files[kind, name].first_path)
            field = file.dataset[[name]]
            if file.time_coord in field.dims:
                field = field.isel({file.time_coord: 0}, drop=True)
            parts.append(field.load())
    # Static variables of all files of a source must have the same grid.
    _save(xr.merge(parts, compat="override", join="exact"), path)


def _save(dataset: xr.Dataset, path: Path) -> None:
    """Writes values as they are in memory, without the encoding of their files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = dataset.drop_encoding()
    names: Iterable[Any] = plain.variables
    encoding: dict[Any, dict[str, Any]] = {name: {"_FillValue": None} for name in names}
    write_netcdf(plain, path, encoding)
