"""Stores of anemoi-datasets, which have all variables of a time in one array, by cell.

Cells that are rows of a regular grid are read as rows and columns, others as points.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.core.indexing import LazilyIndexedArray

from credit_jax.config.data import DataConfig
from credit_jax.config.sources.sections import AnemoiConfig
from credit_jax.data.sources import source
from credit_jax.data.sources.reader import CACHE_BYTES, OpenFile
from credit_jax.data.sources.source import Source, SourceFields
from credit_jax.io.anemoi import DATA, DIMS, AnemoiStore, open_anemoi_store
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.coordinates import GridCoordinates, as_values

# Largest difference, in degrees, of the latitudes of a row or longitudes of a column.
_STRAIGHT = 1e-4

Cells = Float[np.ndarray, " cell"]


@dataclasses.dataclass(frozen=True)
class AnemoiSource(Source):
    """Reads a store of anemoi-datasets; see `Source`."""

    name: str  # name of the source
    config: AnemoiConfig  # section of the source
    store: AnemoiStore  # the store
    opened: OpenFile  # its array of values, with its times
    levels: tuple[float, ...] | None  # levels of the 3-D variables; None without any
    grid: source.FileGrid  # grid of the fields
    points: tuple[Cells, Cells]  # latitudes and longitudes of the cells
    parts: Mapping[str, slice]  # key of a variable -> its part of `values`
    # Reads the variables of the config at the index of a time.
    values: Callable[[int], Float[np.ndarray, "variable *space"]]
    num_levels: int = 0  # number of levels of its 3-D variables
    calendar: str = "standard"  # calendar of its times

    def fields(
        self, field_type: str, times: np.ndarray, rows: slice | None = None
    ) -> SourceFields:
        if rows is not None and len(self.grid.shape) != 2:
            raise ValueError(f"{self.opened.path}: an unstructured grid has no rows")
        keys = [
            source.field_key(self.name, field_type, *variable)
            for variable in source.variables_of(self.config, field_type)
        ]

        def at(time: np.datetime64) -> SourceFields:
            values = self.values(self.opened.time_index(time))
            values = values if rows is None else values[:, rows]
            return {key: values[self.parts[key]] for key in keys}

        return source.read_times(at, field_type, times)

    def grids(self) -> Iterator[source.FileGrid]:
        yield self.grid

    def axes(self) -> GridCoordinates:
        space = as_values(self.grid.latitude), as_values(self.grid.longitude)
        return GridCoordinates(*space, self.levels, where=self.grid.where)

    def units(self) -> dict[str, tuple[str, str]]:
        attributes = self.attributes().items()
        return {key: (units["units"], self.opened.path) for key, units in attributes}

    def attributes(self) -> dict[str, dict[str, str]]:
        units = {}
        for kind in self.config.variables.by_type:
            for dims, variable in source.variables_of(self.config, kind):
                levels = self.levels if dims == "3d" else None
                first = self.store.variables[self.store.places(variable, levels)[0]]
                units[source.field_key(self.name, kind, dims, variable)] = first
        every = {k: self.store.metadata(v).get("units") for k, v in units.items()}
        return {key: {"units": str(unit)} for key, unit in every.items() if unit}

    def path_of(self, field_type: str, variable: str, time: np.datetime64) -> str:
        return self.opened.path

    def coverage(self) -> tuple[pd.Timestamp, pd.Timestamp]:
        times: Any = self.opened.times
        return times[0], times[-1]

    def available(self, times: np.ndarray) -> np.ndarray:
        missing: Any = self.store.group.attrs.get("missing_dates") or []
        return ~np.isin(times, np.array(missing, "datetime64[ns]"))

    def check(self, field_type: str, times: np.ndarray) -> None:
        if field_type == "static":
            return
        missing = times[self.opened.time_indices(times) < 0]
        if missing.size:
            first, last = self.coverage()
            raise source.BadSampleError(
                f"data.source.{self.name}: {missing.size} of {len(times)} times are "
                f"missing in {self.opened.path}, such as {str(missing[0])[:16]}. It "
                f"covers {first:%Y-%m-%dT%H:%M} to {last:%Y-%m-%dT%H:%M}; choose other "
                "dates, or its time step"
            )


def open_anemoi(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> AnemoiSource:
    """Opens the source; reads its times and cells, and no field."""
    config = data.source[name]
    assert isinstance(config, AnemoiConfig)
    store = open_anemoi_store(config.store)
    levels, indices, parts = None, list[int](), dict[str, slice]()
    for kind in config.variables.by_type:
        for dims, variable in source.variables_of(config, kind):
            if dims == "3d":
                levels = levels or config.levels or store.levels_of(variable)
            columns = store.places(variable, levels if dims == "3d" else None)
            first = len(indices)
            indices += columns
            key = source.field_key(name, kind, dims, variable)
            parts[key] = slice(first, len(indices))
    array = store.data
    num_members, member = array.shape[2], config.member
    if (member is None and num_members > 1) or (member or 0) >= num_members:
        raise ValueError(
            f"data.source.{name}.member: got {member}, and {config.store} has "
            f"{num_members} members; expected a position from 0 to {num_members - 1}"
        )
    member = member or 0
    chunks = {"chunks": array.chunks, "dtype": array.dtype}
    lazy = LazilyIndexedArray(ZarrArrayWrapper(array))
    dataset = xr.Dataset({DATA: xr.Variable(DIMS, lazy, encoding=chunks)})
    dates = np.asarray(store.array("dates")[:]).astype("datetime64[ns]")
    times = pd.DatetimeIndex(dates)
    opened = OpenFile(config.store, dataset, times, "standard", "time", None, None)
    points = _cells(store, "latitudes"), _cells(store, "longitudes")
    grid = _grid(config, store, points)

    def load(index: int) -> Float[np.ndarray, "variable *space"]:
        chosen = {
            "time": slice(index, index + 1),
            "variable": indices,
            "ensemble": slice(member, member + 1),
            "cell": slice(None),
        }
        values = np.empty((1, len(indices), 1, points[0].size), np.float32)
        opened.read(DATA, chosen, index, values)
        values = values.reshape(len(indices), *grid.shape)
        values.setflags(write=False)
        return values

    # A chunk mostly holds all variables of a time, of which a sample reads some as
    # input and others as target.
    num_bytes = 4 * len(indices) * points[0].size
    values = functools.lru_cache(max(1, CACHE_BYTES // num_bytes))(load)
    count = len(levels) if levels else 0
    return AnemoiSource(
        name, config, store, opened, levels, grid, points, parts, values, count
    )


def _cells(store: AnemoiStore, name: str) -> Cells:
    values = np.asarray(store.array(name, name.removesuffix("s"))[:], np.float64)
    count = store.data.shape[-1]
    if values.shape != (count,) or not np.isfinite(values).all():
        raise ValueError(
            f"{store.path}: {name} has the shape {values.shape}, expected a finite "
            f"number of each of {count} cells"
        )
    return values


def _grid(
    config: AnemoiConfig, store: AnemoiStore, points: tuple[Cells, Cells]
) -> source.FileGrid:
    """The grid: rows and columns with their coordinates, if the cells have them."""
    latitude, longitude = points
    origin, count = f"{store.path}: {DATA}", latitude.size
    shape: Any = store.group.attrs.get("field_shape") or []
    is_stated = len(shape) == 2 and min(shape) > 1 and np.prod(shape) == count
    # Without the attribute, the first row ends where the latitude changes.
    changes = np.flatnonzero(np.abs(np.diff(latitude)) > _STRAIGHT)
    columns = shape[1] if is_stated else int(changes[0]) + 1 if changes.size else count
    if config.grid_type != "unstructured" and columns < count and not count % columns:
        rows = latitude.reshape(-1, columns), longitude.reshape(-1, columns)
        axes = rows[0][:, 0], rows[1][0]
        straight = (np.ptp(rows[0], 1) <= _STRAIGHT).all()
        if straight and (np.ptp(rows[1], 0) <= _STRAIGHT).all():
            return source.FileGrid(origin, rows[0].shape, *axes)
        if is_stated:
            return source.FileGrid(origin, rows[0].shape, None, None)
    return source.FileGrid(origin, (count,), None, None)
