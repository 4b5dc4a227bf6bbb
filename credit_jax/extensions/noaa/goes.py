"""The `goes` source: images of GOES-R's imager on the grid of the satellite."""

import dataclasses
import glob
import json
import os
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config.data import DataConfig
from credit_jax.data.clock import probe_times
from credit_jax.data.sources.file_source import FileSource, open_files_source
from credit_jax.data.sources.file_variable import FileConventions
from credit_jax.data.sources.files import Files
from credit_jax.data.sources.registry import SourceEntry
from credit_jax.extensions.noaa.sections import Corners, GoesConfig
from credit_jax.io.open_files import OpenFiles

# Entries of a catalog instead of a file: missing, of bad quality, left out by hand.
_FLAGS = ("MISSING", "QC_MASKED", "SKIP")
# Position -> both satellites, the hour of the change, name of the grid.
_SATELLITES = {
    "east": ("goes16", "goes19", pd.Timestamp("2025-04-07 15:00"), "goes19"),
    "west": ("goes17", "goes18", pd.Timestamp("2023-01-04 18:00"), "goes18"),
}
_GRIDS = {"C": "abi_conus_lat_lon.nc", "F": "abi_full_disk_lat_lon.nc"}


@dataclasses.dataclass(frozen=True, eq=False)
class Images(Files):
    """Image files by the requested time; see `Files`."""

    template: str  # path of the folder or of the catalog
    by_time: dict[np.datetime64, str]  # of each time that has one, sorted

    @property
    def first_path(self) -> str:
        """The first file."""
        return next(iter(self.by_time.values()))

    def find(self, time: np.datetime64) -> str | None:
        """Returns the file of a time, or None."""
        return self.by_time.get(time)

    def lacks(self, time: np.datetime64) -> str:
        """The end of an error message: why a time has no file."""
        return f"is near enough to {str(time)[:19]}, or passed its check"

    def available(self, times: np.ndarray) -> np.ndarray:
        """Whether each time has a file; samples without one are left out."""
        return np.isin(times, np.array([*self.by_time], dtype="datetime64[ns]"))


def open_goes(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> FileSource:
    """Opens the images nearest to the times of samples, from folders or catalogs."""
    config = data.source[name]
    assert isinstance(config, GoesConfig)
    times = probe_times(data, config)
    catalogs = sorted(glob.glob(config.file_catalog_path or ""))
    shared = None
    if catalogs:
        # Differs from CREDIT: the extent of a catalog is that of the config or the
        # whole grid; CREDIT also accepts one 0.5 degrees inside, and fails on samples
        # of which an earlier input time has no image.
        shared = _from_catalogs(catalogs, config, data, name)
    images = {
        kind: shared or _from_folders(str(field.path), config, times)
        for kind, field in config.variables.by_type.items()
    }
    area = None
    if config.extent is not None:
        area = _area(config, open_files or OpenFiles())
    part = None if area is None else lambda _: area
    conventions = FileConventions(static_time="same", one_time=True, extent=part)
    return open_files_source(
        name, config, lambda kind, *_: images[kind], conventions, open_files
    )


def _from_folders(
    base: str, config: GoesConfig, times: tuple[np.datetime64, ...]
) -> Images:
    """Finds the nearest image to each time, if there is one within the tolerance."""
    stamps: Any = pd.DatetimeIndex(np.array(times))
    paths, starts = [], []
    for hour in stamps.floor("h").unique():
        folder = _folder(base, config, hour)
        if folder is None or not os.path.isdir(folder):
            continue
        for file in sorted(os.listdir(folder)):
            paths.append(os.path.join(folder, file))
            starts.append(_start_of(paths[-1]))
    if not paths:
        raise FileNotFoundError(
            f"no image of {config.product} in {base!r} (noaa-goes*/{config.product}/"
            f"year/day/hour) for {stamps[0]} to {stamps[-1]}"
        )
    order = np.argsort(np.array(starts, dtype="datetime64[ns]"), kind="stable")
    index = pd.DatetimeIndex(np.array(starts, dtype="datetime64[ns]")[order])
    index, first = index[~index.duplicated()], np.flatnonzero(~index.duplicated())
    tolerance: Any = pd.Timedelta(config.scan_tolerance)
    nearest = index.get_indexer(stamps, method="nearest", tolerance=tolerance)
    positions = zip(times, nearest, strict=True)
    return Images(
        base, {t: paths[order[first[near]]] for t, near in positions if near >= 0}
    )


def _folder(base: str, config: GoesConfig, hour: Any) -> str | None:
    """NOAA's folder of an hour; None for the hour in which the satellite changed."""
    previous, after, change, _ = _SATELLITES[config.goes_position]
    if hour == change:
        return None
    satellite = previous if hour < change else after
    day = hour.strftime("%Y/%j/%H")
    return os.path.join(base, f"noaa-{satellite}", config.product, day)


def _start_of(path: str) -> np.datetime64:
    """Start of the scan, from a name such as OR_..._s20211520001..._e..._c....nc."""
    parts = os.path.basename(path).rsplit("_", 5)
    try:
        start = pd.to_datetime(parts[-3], format="s%Y%j%H%M%S%f")
    except (ValueError, IndexError):
        raise ValueError(
            f"{path}: no name of a GOES file: expected _s<begin>_e<end>_c<made>.nc"
        ) from None
    return start.to_datetime64()


def _from_catalogs(
    paths: list[str], config: GoesConfig, data: DataConfig, name: str
) -> Images:
    """Reads the files of catalogs, without flagged entries."""
    rows = []
    for path in paths:
        with open(path) as file:
            catalog = json.load(file)
        _check_catalog(path, catalog["metadata"], config, data)
        rows += catalog["catalog"]
    good, seen = [], set()
    for start, _, file in rows:
        if "/" not in file and not file.endswith(".nc") and file not in _FLAGS:
            raise ValueError(
                f"{paths[0]}: {file!r} at {start} is neither a file nor one of "
                f"{', '.join(_FLAGS)}"
            )
        stamp: Any = pd.Timestamp(start)
        time = np.array([stamp.to_datetime64()], dtype="datetime64[ns]")[0]
        seen.add(time)
        if file not in _FLAGS:
            good.append((time, file))
    missing = [time for time in probe_times(data, config) if time not in seen]
    if missing or not good:
        raise ValueError(
            f"data.source.{name}.file_catalog_path: {len(missing)} times have no row "
            f"in {', '.join(paths)}: {missing[:1]!s}; make the catalog again"
        )
    good.sort()
    return Images(paths[0], dict(good))


def _check_catalog(
    path: str, meta: dict[str, Any], config: GoesConfig, data: DataConfig
) -> None:
    extent: Any = config.extent
    if isinstance(extent, Corners):
        extent = {"nw": list(extent.nw), "se": list(extent.se)}
    expected: dict[str, Any] = {
        "mode": config.mode,
        "timestep": str(config.time_step or data.time_step),
        "product": config.product,
        "goes_position": config.goes_position,
    }
    if meta.get("extent") is not None:
        expected["extent"] = list(extent) if isinstance(extent, tuple) else extent
    for key, value in expected.items():
        if meta.get(key) != value:
            raise ValueError(
                f"{path}: a catalog of {key} {meta.get(key)!r}, expected {value!r}; "
                "make it again for this config"
            )
    checked = meta.get("variables")
    for kind, field in config.variables.by_type.items() if checked else ():
        entries = (checked or {}).get(kind) or {}
        missing = set(field.vars_2D) - set(entries.get("vars_2D") or ())
        if missing:
            raise ValueError(
                f"{path}: {', '.join(sorted(missing))} of {kind} were not checked when "
                "the catalog was made; make it again for this config"
            )


def _area(config: GoesConfig, open_files: OpenFiles) -> tuple[slice, slice]:
    """Rows and columns between the grid points nearest to the corners of the extent."""
    grid = _SATELLITES[config.goes_position][3]
    path = os.path.join(config.latlon2d_dir, f"{grid}_{_GRIDS[config.product[-1]]}")
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"{path}: no file with latitudes and longitudes, which extent needs; set "
            "latlon2d_dir"
        )
    dataset = open_files.dataset(path)
    lat, lon = (dataset[key].values for key in ("latitude", "longitude"))
    if isinstance(config.extent, Corners):
        corners = [config.extent.nw, config.extent.se]
    else:
        assert config.extent is not None
        west, east, south, north = config.extent
        corners = [(y, x) for y in (south, north) for x in (west, east)]
    points = [_nearest(lat, lon, *corner) for corner in corners]
    rows, columns = zip(*points, strict=True)
    return slice(min(rows), max(rows) + 1), slice(min(columns), max(columns) + 1)


def _nearest(
    lat: Float[np.ndarray, "y x"],
    lon: Float[np.ndarray, "y x"],
    latitude: float,
    longitude: float,
) -> tuple[int, int]:
    """Row and column of the grid point with the smallest distance on the sphere."""
    phi, target = np.deg2rad(lat), np.deg2rad(latitude)
    half_lat = (phi - target) / 2
    half_lon = (np.deg2rad(lon) - np.deg2rad(longitude)) / 2
    a = np.sin(half_lat) ** 2 + np.cos(target) * np.cos(phi) * np.sin(half_lon) ** 2
    distance = np.arctan2(np.sqrt(a), np.sqrt(1 - a))
    row, column = np.unravel_index(np.nanargmin(distance), lat.shape)
    return int(row), int(column)


GOES = SourceEntry(GoesConfig, open_goes)
