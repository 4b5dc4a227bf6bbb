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
from credit_jax.named_fields.coordinates import SAME_DEGREES

_UNITS = {"latitude": "degrees_north", "longitude": "degrees_east"}
_CURVED = ("y", "x")


def write_grid(path: Path, latitude: np.ndarray, longitude: np.ndarray) -> None:
    """Writes latitudes and longitudes, (lat,) and (lon,), or both (y, x); degrees."""
    arrays = {"latitude": latitude, "longitude": longitude}
    coordinates = {
        name: (_CURVED if values.ndim == 2 else (name,), values, _attributes(name))
        for name, values in arrays.items()
    }
    _save(xr.Dataset(coords=coordinates), path)


def _attributes(name: str) -> dict[str, str]:
    return {"units": _UNITS[name], "standard_name": name}


def check_same_grid(path: Path, latitude: np.ndarray, longitude: np.ndarray) -> None:
    """Checks that a grid equals that of a file.

    Raises:
        ValueError: they differ.
    """
    stored_axes = read_grid(path)
    for name, here, stored in zip(
        _UNITS, (latitude, longitude), stored_axes, strict=True
    ):
        if here.shape != stored.shape:
            raise ValueError(
                f"the data have {name}s of shape {here.shape}, the package was made "
                f"for {stored.shape}; give data on its grid (grid.nc), or regrid them"
            )
        far = float(np.abs((here - stored + 180) % 360 - 180).max())
        if far > SAME_DEGREES:
            raise ValueError(
                f"the {name}s of the data are up to {far:g} degrees from those of the "
                f"package, {here.flat[0]:g} to {here.flat[-1]:g}, expected "
                f"{stored.flat[0]:g} to {stored.flat[-1]:g}; give data on its grid "
                "(grid.nc), or regrid them"
            )


def read_grid(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Latitudes and longitudes of `write_grid`."""
    with opened(path) as dataset:
        latitude, longitude = (dataset[name].values for name in _UNITS)
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
    static_files = [key for key in source.files if key[0] == "static"]
    parts = [_variable(source, name) for _, name in static_files]
    # Static variables of all files of a source must have the same grid.
    _save(xr.merge(parts, compat="override", join="exact"), path)


def _variable(source: FileSource, name: str) -> xr.Dataset:
    opened = source.reader.open(source.files["static", name].first_path)
    field = opened.dataset[[name]]
    if opened.time_coord in field.dims:
        field = field.isel({opened.time_coord: 0}, drop=True)
    return field.load()


def _save(dataset: xr.Dataset, path: Path) -> None:
    """Writes values as they are in memory, without the encoding of their files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = dataset.drop_encoding()
    names: Iterable[Any] = plain.variables
    encoding: dict[Any, dict[str, Any]] = {name: {"_FillValue": None} for name in names}
    write_netcdf(plain, path, encoding)
