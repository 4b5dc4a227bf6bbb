"""Writes the demo data set in CREDIT's layout, atomically.

The files are demo_{year}.zarr with dims (time, level, latitude, longitude), latitudes
from north to south; static.nc; mean.nc and std.nc, with a value per level, of all days
except the held-out ones.
"""

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from credit_jax.extensions.demo.physics import solar_irradiance
from credit_jax.io.atomic import new_folder
from credit_jax.io.netcdf import write_netcdf
from credit_jax.named_fields.units import DEGREES

MANIFEST = "demo.json"
FIRST_TIME = pd.Timestamp("2000-01-01")
TIMES_PER_CHUNK = 4  # a day
_TIME_ENCODING = {
    "units": "hours since 2000-01-01 00:00:00",
    "calendar": "proleptic_gregorian",
    "dtype": "int64",
}

# variable -> (CF standard name or "", long name, units)
VARIABLES = {
    "U": ("eastward_wind", "zonal wind", "m s-1"),
    "V": ("northward_wind", "meridional wind", "m s-1"),
    "T": ("air_temperature", "temperature", "K"),
    "Q": ("specific_humidity", "specific humidity", "kg kg-1"),
    "SP": ("surface_air_pressure", "surface pressure", "Pa"),
    "V500": ("northward_wind", "meridional wind at 500 hPa", "m s-1"),
    "Z500": ("geopotential", "geopotential at 500 hPa", "m2 s-2"),
    "TP": ("lwe_thickness_of_precipitation_amount", "rain of the last 6 hours", "m"),
    "tsi": (
        "toa_incoming_shortwave_flux",
        "solar radiation at the top of the atmosphere",
        "W m-2",
    ),
    "Z_GDS4_SFC": ("surface_geopotential", "surface geopotential", "m2 s-2"),
    "LSM": ("land_binary_mask", "land-sea mask", "1"),
}


Times: TypeAlias = Any  # pd.DatetimeIndex, some fields of which type stubs lack


@dataclasses.dataclass(frozen=True)
class DemoCoordinates:
    """Coordinates of the data set: levels top first, latitudes from north to south."""

    level: Float[np.ndarray, " level"]
    latitude: Float[np.ndarray, " lat"]
    longitude: Float[np.ndarray, " lon"]

    def coordinates(self, times: Times) -> dict[str, Any]:
        """CF coordinates for `xr.Dataset`; without times those of static fields."""
        coordinates: dict[str, Any] = {
            name: (name, getattr(self, name), dict(attributes))
            for name, attributes in DEGREES.items()
        }
        if times is not None:
            sigma = {
                "standard_name": "atmosphere_sigma_coordinate",
                "positive": "down",
                "units": "1",
            }
            coordinates["level"] = ("level", self.level, sigma)
            coordinates["time"] = ("time", times, {"standard_name": "time"})
        return coordinates


class LevelStatistics:
    """Accumulates mean and standard deviation of each level, in float64."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[int, np.ndarray, np.ndarray]] = {}

    def add(self, name: str, fields: np.ndarray) -> None:
        """Adds fields (time, level, lat, lon) or (time, lat, lon) of one variable."""
        fields = fields.astype(np.float64)
        axes = (0, 2, 3) if fields.ndim == 4 else (0, 1, 2)
        count = fields.size // (fields.shape[1] if fields.ndim == 4 else 1)
        mean = fields.mean(axis=axes)
        squares = fields.var(axis=axes) * count
        previous, old_mean, old = self._sums.get(name, (0, mean * 0, mean * 0))
        # Chan et al. (1979).
        gap, total = mean - old_mean, previous + count
        self._sums[name] = (
            total,
            old_mean + gap * count / total,
            old + squares + gap**2 * previous * count / total,
        )

    def write(self, folder: Path, axes: DemoCoordinates) -> None:
        """Writes mean.nc and std.nc (population standard deviation)."""
        for file, long in (("mean", "mean"), ("std", "standard deviation")):
            dataset = xr.Dataset(coords={"level": axes.level})
            for name, (count, mean, squares) in self._sums.items():
                value = mean if file == "mean" else np.sqrt(squares / count)
                dims = ("level",) if value.ndim else ()
                units = {"units": VARIABLES[name][2], "long_name": long}
                dataset[name] = (dims, value, units)
            write_netcdf(dataset, folder / f"{file}.nc")


def append_times(
    folder: Path, axes: DemoCoordinates, times: Times, fields: dict[str, np.ndarray]
) -> None:
    """Appends fields of consecutive times, whole days, to one Zarr store per year."""
    for year in sorted(set(times.year)):
        chosen = times.year == year
        part = {name: field[chosen] for name, field in fields.items()}
        path = folder / f"demo_{year}.zarr"
        how: dict[str, Any] = {"append_dim": "time"}
        if not path.exists():
            encoding: dict[str, Any] = {
                name: {"chunks": (TIMES_PER_CHUNK, *field.shape[1:])}
                for name, field in part.items()
            }
            # One chunk for the times of a year: opening a store reads all of them.
            encoding["time"] = {**_TIME_ENCODING, "chunks": (4 * 366,)}
            how = {"mode": "w-", "encoding": encoding}
        dataset = _dataset(part, axes, times[chosen])
        dataset.to_zarr(path, zarr_format=2, consolidated=True, **how)


def write_static(
    folder: Path, axes: DemoCoordinates, fields: dict[str, np.ndarray]
) -> None:
    """Writes static.nc with fields (lat, lon) and their coordinates."""
    write_netcdf(_dataset(fields, axes, None), folder / "static.nc")


def solar_fields(axes: DemoCoordinates, times: Times) -> np.ndarray:
    """`tsi` at the given times, (time, lat, lon) in W m-2."""
    day = days_of_year(times)[:, None, None]
    latitude = np.radians(axes.latitude)[None, :, None]
    longitude = np.radians(axes.longitude)[None, None, :]
    return solar_irradiance(day, latitude, longitude).astype(np.float32)


def days_of_year(times: Times) -> np.ndarray:
    """Days since 1 January 00 UTC of the same year, with fraction."""
    hours = times.hour.to_numpy() + times.minute.to_numpy() / 60.0
    return times.day_of_year.to_numpy() - 1.0 + hours / 24.0


def _dataset(
    fields: dict[str, np.ndarray], axes: DemoCoordinates, times: Times
) -> xr.Dataset:
    dims = ("time", "level", "latitude", "longitude")
    variables = {}
    for name, field in fields.items():
        standard, long, units = VARIABLES[name]
        attributes = {"standard_name": standard, "long_name": long, "units": units}
        chosen = {4: dims, 3: (dims[0], *dims[2:]), 2: dims[2:]}[field.ndim]
        variables[name] = (chosen, field.astype(np.float32), attributes)
    title = "Idealized moist Held-Suarez climate made by credit_jax with dinosaur"
    attributes = {"title": title, "Conventions": "CF-1.10"}
    return xr.Dataset(variables, axes.coordinates(times), attributes)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Reads the manifest of a data set; None if the folder has no complete data set."""
    path = folder / MANIFEST
    return json.loads(path.read_text()) if path.is_file() else None


@contextmanager
def new_dataset(folder: Path, manifest: dict[str, Any]) -> Iterator[Path]:
    """Yields a temporary folder, which is synced to disk and renamed to `folder`."""
    with new_folder(folder) as partial:
        yield partial
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        for path in (*partial.rglob("*"), partial):
            _sync(path)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
