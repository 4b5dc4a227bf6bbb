"""The `tisr` source: incident solar radiation, computed for a time and a grid.

It is that at the top of the atmosphere, integrated over time, by the formulas of
ECMWF's IFS, as in GraphCast's `solar_radiation.py` and CREDIT's `tisr` source. All is
computed in float32, to agree with CREDIT: the number of days since 2000 in float32 has
a resolution of 42 s (84 s from 2022 on).
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from credit_jax.config.data import DataConfig
from credit_jax.config.sources.sections import TisrConfig
from credit_jax.data.sources import source
from credit_jax.data.sources.source import Source, SourceFields
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.axes import horizontal

# Number of cached times, which neighboring samples share.
_CACHE_SIZE = 8
_J2000 = 2451545.0
_DAYS_PER_YEAR = np.float32(365.25)
_SECONDS_PER_DAY = 86400
# Obliquity of the ecliptic, radians.
_OBLIQUITY = np.float32(0.409093)
_DEGREE = np.float32(np.pi / 180)


@dataclasses.dataclass(frozen=True)
class TisrSource(Source):
    """Computes the radiation of the time step before each time, J m-2; see `Source`."""

    name: str  # name of the source
    config: TisrConfig  # section of the source
    period: pd.Timedelta  # period to integrate over, the time step of the source
    # (lat, lon) degrees.
    latitude: Float[np.ndarray, "lat lon"]
    longitude: Float[np.ndarray, "lat lon"]
    calendar: str = "standard"  # calendar of its times
    num_levels: int = 0  # 0, since there are no 3-D variables

    def fields(
        self, field_type: str, times: np.ndarray, rows: slice | None = None
    ) -> SourceFields:
        part = (None, None) if rows is None else (rows.start, rows.stop)
        return {
            source.field_key(self.name, field_type, dims, name): np.stack(
                [self._recent(time, *part) for time in times]
            )[None]
            for dims, name in source.variables_of(self.config, field_type)
        }

    def grids(self) -> Iterator[source.FileGrid]:
        lat, lon = self.latitude, self.longitude
        straight = (lat == lat[:, :1]).all() and (lon == lon[:1]).all()
        origin = f"data.source.{self.name}: tisr"
        coordinates = (lat[:, 0], lon[0]) if straight else (None, None)
        yield source.FileGrid(origin, lat.shape, *coordinates)

    def check(self, field_type: str, times: np.ndarray) -> None:
        # The irradiance of the sun is known at the first and last time.
        for time in times[[0, -1]] if times.size else ():
            self._compute(time, 0, 1)

    @functools.cached_property
    def _recent(self) -> Callable[..., Float[np.ndarray, "lat lon"]]:
        return functools.lru_cache(_CACHE_SIZE)(self._compute)

    def _compute(
        self, time: np.datetime64, start: int | None, stop: int | None
    ) -> Float[np.ndarray, "lat lon"]:
        """The field of a time, of some rows; read-only."""
        rows, steps = slice(start, stop), self.config.num_integration_steps
        grid = self.latitude[rows], self.longitude[rows]
        try:
            radiation = integrated_radiation(time, self.period, steps, *grid)
        except ValueError as error:
            raise ValueError(f"data.source.{self.name}: {error}") from None
        radiation.setflags(write=False)
        return radiation


def open_tisr(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> TisrSource:
    """Opens the source on the grid of its config."""
    config = data.source[name]
    assert isinstance(config, TisrConfig)
    period: Any = config.time_step or data.time_step
    if config.lat_spec is not None and config.lon_spec is not None:
        axes = [_axis(spec) for spec in (config.lat_spec, config.lon_spec)]
    else:
        path = str(config.latlon_grid_path)
        origin = f"data.source.{name}.latlon_grid_path"
        try:
            coordinates = open_axes(path, open_files or OpenFiles())
        except ValueError as error:
            raise ValueError(f"{origin}: {error}") from None
        axes = [np.asarray(axis.values, np.float32).squeeze() for axis in coordinates]
        dims = [axis.ndim for axis in axes]
        if dims not in ([1, 1], [2, 2]):
            raise ValueError(
                f"{origin}: {path} has latitudes and longitudes of {dims} dims, "
                "expected 1 or 2 of both"
            )
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


def open_axes(path: str, open_files: OpenFiles) -> list[xr.DataArray]:
    """Opens the variables of latitudes and longitudes in a file."""
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


@dataclasses.dataclass(frozen=True)
class Sun:
    """Irradiance and position of the sun at some times, (time,) float32 each."""

    # Irradiance of a surface that faces the sun, W m-2.
    flux: Float[np.ndarray, " time"]
    # Hour angle at the prime meridian, as a fraction of a day.
    phase: Float[np.ndarray, " time"]
    # Sine and cosine of the solar declination.
    sin_declination: Float[np.ndarray, " time"]
    cos_declination: Float[np.ndarray, " time"]
    # Weight of each time in an integral over time, s.
    weight: Float[np.ndarray, " time"]


def integrated_radiation(
    time: np.datetime64,
    period: pd.Timedelta,
    num_steps: int,
    latitude: Float[np.ndarray, "lat lon"],
    longitude: Float[np.ndarray, "lat lon"],
) -> Float[np.ndarray, "lat lon"]:
    """Integrates radiation from time - period to time (UTC), J m-2."""
    # By the trapezoidal rule of max(0, cos(zenith)) x irradiance, at `num_steps` + 1
    # times. Times that are equal in float32 are computed once.
    sun = sun_at(time, period, num_steps)
    out = np.empty(latitude.shape, dtype=np.float32)
    weight = sun.weight * sun.flux
    last, cosine = None, None
    for row in range(latitude.shape[0]):
        if last is None or not np.array_equal(longitude[row], last):
            last = longitude[row]
            degrees = np.float32(360.0) * sun.phase[:, None] + last
            cosine = np.cos(degrees * _DEGREE)
        assert cosine is not None
        lat = latitude[row] * _DEGREE
        lat = lat[:1] if (latitude[row] == latitude[row][0]).all() else lat
        # max(0, cos(lat) cos(declination) cos(hour angle) + sin(lat) sin(declination))
        zenith = (np.cos(lat) * sun.cos_declination[:, None]) * cosine
        zenith += np.sin(lat) * sun.sin_declination[:, None]
        out[row] = weight @ np.maximum(zenith, 0, out=zenith)
    return out


def sun_at(time: np.datetime64, period: pd.Timedelta, num_steps: int) -> Sun:
    """Computes the sun at the distinct float32 times of a period, with weights."""
    interval: Any = period / num_steps
    times = pd.date_range(end=time, periods=num_steps + 1, freq=interval)
    days = np.asarray(times.to_julian_date()) - _J2000
    days = days.astype(np.float32)
    # Total solar irradiance at 1 AU, W m-2: linear between yearly means.
    years, values = _table()
    fields: Any = times
    outside = (fields.year < int(years[0])) | (fields.year > int(years[-1]))
    if outside.any():
        raise ValueError(
            f"the solar irradiance is known for {int(years[0])} to {int(years[-1])}, "
            f"not for {times[outside][0]}"
        )
    date = fields.normalize()
    day = fields.day_of_year - 1 + (times - date) / pd.Timedelta(days=1)
    year = np.asarray(fields.year + day / (365 + fields.is_leap_year))
    year = year.astype(np.float32)
    upper = np.clip(np.searchsorted(years, year), 1, len(years) - 1)
    lower = upper - 1
    part = (year - years[lower]) / (years[upper] - years[lower])
    irradiance = values[lower] + part * (values[upper] - values[lower])
    seconds = interval / pd.Timedelta(seconds=1)
    weight = np.full(num_steps + 1, seconds)
    weight[[0, -1]] /= 2
    pairs = np.stack([days, irradiance], axis=-1)
    pairs, inverse = np.unique(pairs, axis=0, return_inverse=True)
    summed = np.bincount(inverse.ravel(), weights=weight).astype(np.float32)
    days, irradiance = pairs[:, 0], pairs[:, 1]
    # Declination, equation of time and distance of the sun, by IFS's expansions.
    theta = days / _DAYS_PER_YEAR
    f = np.float32
    rel = f(1.7535) + f(6.283076) * theta
    rem = f(6.240041) + f(6.283020) * theta
    rlls = f(4.8951) + f(6.283076) * theta
    one = np.ones_like(theta)
    sin_rel, cos_rel = np.sin(rel), np.cos(rel)
    longitude = _sum(
        (4.8952, one),
        (6.283320, theta),
        (-0.0075, sin_rel),
        (-0.0326, cos_rel),
        (-0.0003, np.sin(f(2) * rel)),
        (0.0002, np.cos(f(2) * rel)),
    )
    sine = np.sin(_OBLIQUITY) * np.sin(longitude)
    equation_of_time = _sum(
        (591.8, np.sin(f(2) * rlls)),
        (-459.4, np.sin(rem)),
        (39.5, np.sin(rem) * np.cos(f(2) * rlls)),
        (-12.7, np.sin(f(4) * rlls)),
        (-4.8, np.sin(f(2) * rem)),
    )
    distance = _sum((1.0001, one), (-0.0163, sin_rel), (0.0037, cos_rel))
    return Sun(
        flux=irradiance * (f(1) / distance**2),
        phase=days % f(1) + equation_of_time / f(_SECONDS_PER_DAY),
        sin_declination=sine,
        cos_declination=np.sqrt(f(1) - sine**2),
        weight=summed,
    )


def _sum(
    *terms: tuple[float, Float[np.ndarray, " time"]],
) -> Float[np.ndarray, " time"]:
    """Sum of factor times series over all terms, in float32 and in order."""
    total = np.zeros_like(terms[0][1])
    for factor, series in terms:
        total = total + np.float32(factor) * series
    return total


@functools.cache
def _table() -> tuple[Float[np.ndarray, " year"], Float[np.ndarray, " year"]]:
    """Middle of each year, and its mean irradiance."""
    file = resources.files("credit_jax.data.sources") / "solar_irradiance.csv"
    with file.open() as lines:
        years, values = np.loadtxt(lines, delimiter=",", dtype=np.float32).T
    return np.ascontiguousarray(years), np.ascontiguousarray(values)
