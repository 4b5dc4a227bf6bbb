"""The `tisr` source: incident solar radiation, computed for a time and a grid."""

import collections
import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from credit_jax.config.data import DataConfig
from credit_jax.config.sources.sections import TisrConfig
from credit_jax.data.sources.solar import integrated_radiation
from credit_jax.data.sources.source import (
    AnyTime,
    FileGrid,
    SourceFields,
    field_key,
    variables_of,
)
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.axes import horizontal

# Number of cached times, which neighboring samples share.
_CACHE_SIZE = 8


class _Recent:
    """A thread-safe cache of the most recently computed fields."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache: collections.OrderedDict = collections.OrderedDict()

    def get(self, key: Any) -> np.ndarray | None:
        with self._lock:
            return self._cache.get(key)

    def put(self, key: Any, value: np.ndarray) -> None:
        with self._lock:
            self._cache[key] = value
            while len(self._cache) > _CACHE_SIZE:
                self._cache.popitem(last=False)


@dataclasses.dataclass(frozen=True)
class TisrSource(AnyTime):
    """Computes the radiation of the time step before each time, J m-2; see `Source`.

    Attributes:
        name: name of the source.
        config: section of the source.
        period: period to integrate over, the time step of the source.
        latitude, longitude: (lat, lon) degrees.
        calendar: calendar of its times.
        num_levels: 0, since there are no 3-D variables.
        recent: cache of fields.
    """

    name: str
    config: TisrConfig
    period: pd.Timedelta
    latitude: Float[np.ndarray, "lat lon"]
    longitude: Float[np.ndarray, "lat lon"]
    calendar: str = "standard"
    num_levels: int = 0
    recent: _Recent = dataclasses.field(default_factory=_Recent, compare=False)

    def fields(
        self, field_type: str, times: np.ndarray, rows: slice | None = None
    ) -> SourceFields:
        """See `Source.read`."""
        return {
            field_key(self.name, field_type, dims, name): np.stack(
                [self._at(time, rows or slice(None)) for time in times]
            )[None]
            for dims, name in variables_of(self.config, field_type)
        }

    def grids(self) -> Iterator[FileGrid]:
        """See `Source.grids`."""
        lat, lon = self.latitude, self.longitude
        straight = (lat == lat[:, :1]).all() and (lon == lon[:1]).all()
        origin = f"data.source.{self.name}: tisr"
        coordinates = (lat[:, 0], lon[0]) if straight else (None, None)
        yield FileGrid(origin, lat.shape, *coordinates)

    def check(self, field_type: str, times: np.ndarray) -> None:
        """Checks that the irradiance of the sun is known at the first and last time."""
        for time in times[[0, -1]] if times.size else ():
            self._compute(time, slice(0, 1))

    def _at(self, time: np.datetime64, rows: slice) -> Float[np.ndarray, "lat lon"]:
        key = (time, rows.start, rows.stop)
        radiation = self.recent.get(key)
        if radiation is None:
            radiation = self._compute(time, rows)
            radiation.setflags(write=False)
            self.recent.put(key, radiation)
        return radiation

    def _compute(
        self, time: np.datetime64, rows: slice
    ) -> Float[np.ndarray, "lat lon"]:
        steps = self.config.num_integration_steps
        grid = self.latitude[rows], self.longitude[rows]
        try:
            return integrated_radiation(time, self.period, steps, *grid)
        except ValueError as error:
            raise ValueError(f"data.source.{self.name}: {error}") from None


def open_tisr(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> TisrSource:
    """Opens the source on the grid of its config.

    Args:
        name: name of the source.
        data: the data section that it is in, whose time step is the period of the
            integral if the source has none.
        open_files: cache of open files.

    Raises:
        ValueError: the file of the grid has no latitudes and longitudes.
    """
    config = data.source[name]
    assert isinstance(config, TisrConfig)
    period: Any = config.time_step or data.time_step
    if config.lat_spec is not None and config.lon_spec is not None:
        axes = [_axis(spec) for spec in (config.lat_spec, config.lon_spec)]
    else:
        axes = _read_axes(config, name, open_files or OpenFiles())
    if axes[0].ndim == 1:
        axes = np.meshgrid(*axes, indexing="ij")
    calendar = config.calendar or "standard"
    return TisrSource(name, config, period, axes[0], axes[1], calendar)


def _axis(spec: tuple[float, float, int]) -> Float[np.ndarray, " point"]:
    """As torch.linspace in float32, which computes from both ends to the middle."""
    first, last, count = np.float32(spec[0]), np.float32(spec[1]), spec[2]
    if count == 1:
        return np.array([first])
    step = (last - first) / np.float32(count - 1)
    up = np.arange(count, dtype=np.float32)
    return np.where(up < count // 2, first + step * up, last - step * up[::-1])


def _read_axes(
    config: TisrConfig, name: str, open_files: OpenFiles
) -> list[Float[np.ndarray, "..."]]:
    """Reads latitudes and longitudes of a file, both 1-D or both 2-D."""
    path = str(config.latlon_grid_path)
    try:
        coordinates = open_axes(path, open_files)
    except ValueError as error:
        raise ValueError(f"data.source.{name}.latlon_grid_path: {error}") from None
    axes = [np.asarray(axis.values, np.float32).squeeze() for axis in coordinates]
    dims = [axis.ndim for axis in axes]
    if dims not in ([1, 1], [2, 2]):
        raise ValueError(
            f"data.source.{name}.latlon_grid_path: {path} has latitudes and longitudes "
            f"of {dims} dims, expected 1 or 2 of both"
        )
    return axes


def open_axes(path: str, open_files: OpenFiles) -> list[xr.DataArray]:
    """Opens the variables of latitudes and longitudes in a file.

    Raises:
        ValueError: there are no such variables.
    """
    dataset = open_files.dataset(path)
    axes = []
    for kind, array in zip(
        ("latitude", "longitude"), horizontal(dataset, path, None), strict=True
    ):
        if array is None:
            raise ValueError(
                f"{path} has no {kind}; it has {', '.join(map(str, dataset.variables))}"
            )
        axes.append(array)
    return axes
