"""Fields of NetCDF files and Zarr stores, for any order of their dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from credit_jax.io.errors import errors_of
from credit_jax.named_fields.axes import horizontal, level_values
from credit_jax.named_fields.coordinates import SAME_DEGREES, LevelValues, places_of
from credit_jax.named_fields.units import conversion, text_of

_SPACE = ("latitude", "longitude")
# Name of a variable -> positions of its levels; None for one without levels.
LevelSelection = Mapping[str, tuple[int, ...] | None]


@dataclass(frozen=True, eq=False)
class GridVariable:
    """A variable of a file.

    Attributes:
        levels: values of its level coordinate, pressures in hPa; None at the surface.
        units, long_name: "" if the file has none.
        level_units: unit of the levels, see `level_units`.
    """

    levels: np.ndarray | None = None
    units: str = ""
    long_name: str = ""
    level_units: str = ""


def level_units(levels: np.ndarray, attributes: Mapping[str, Any]) -> str:
    """Units of a level coordinate: "hPa", "sigma", those of the file, or "".

    Args:
        levels: values of the coordinate, pressures in hPa; numbers have no units.
        attributes: CF attributes of the coordinate.

    >>> level_units(np.array([500.0, 850.0]), {"units": "millibars"})
    'hPa'
    """
    is_number = any(np.array_equal(levels, np.arange(len(levels)) + k) for k in (0, 1))
    if is_number and len(levels) > 1:
        return ""
    units = text_of(attributes, "units")
    if conversion(units, "hPa") is not None:
        return "hPa"
    if "sigma" in text_of(attributes, "standard_name") and np.max(levels) <= 1.5:
        return "sigma"
    return "" if units in ("1", "level", "levels", "layer") else units


def in_hectopascal(levels: LevelValues) -> np.ndarray:
    """Values of levels, pressures in hPa."""
    factor, _ = conversion(levels.unit, "hPa") or (1.0, 0.0)
    return np.multiply(levels, factor)


@dataclass(frozen=True, eq=False)
class GridFile:
    """An opened file.

    Attributes:
        where: its name, for errors.
        dataset: opened; fields are read on access.
        others: names of dims that are not levels: times, members.
    """

    where: str
    dataset: xr.Dataset
    others: tuple[str, ...] = ()

    @cached_property
    def latitude(self) -> np.ndarray:
        """(lat,) degrees, or (y, x)."""
        return self._coordinate("latitude").values.astype(np.float64)

    @cached_property
    def longitude(self) -> np.ndarray:
        """(lon,) degrees, or (y, x)."""
        return self._coordinate("longitude").values.astype(np.float64)

    @cached_property
    def _axes(self) -> tuple[xr.DataArray | None, xr.DataArray | None]:
        latitude, longitude = horizontal(self.dataset, self.where)
        rows, columns = horizontal(self.dataset, self.where, 2)
        return (
            rows if latitude is None else latitude,
            columns if longitude is None else longitude,
        )

    @cached_property
    def _space(self) -> tuple[str, str]:
        """Names of the dims of rows and columns."""
        rows, columns = self._axes
        return (
            _SPACE[0] if rows is None else str(rows.dims[0]),
            _SPACE[1] if columns is None else str(columns.dims[-1]),
        )

    @cached_property
    def variables(self) -> dict[str, GridVariable]:
        """The variables that have rows and columns, by name."""
        return {
            str(name): self._variable(array)
            for name, array in self.dataset.data_vars.items()
            if {*self._space} <= {*array.dims} and len({*self._space}) == 2
        }

    def read(
        self, name: str, places: Mapping[str, int], levels: Sequence[int] | None
    ) -> Float[np.ndarray, "... lat lon"]:
        """Reads a field as float32, (..., level, lat, lon); see `others` for the dots.

        Args:
            name: name of the variable.
            places: dim -> position; dims that the variable lacks are ignored.
            levels: positions of the levels; None for all, or a variable without levels.
        """
        array = self.dataset[name]
        array = array.isel({k: v for k, v in places.items() if k in array.dims})
        level = self._level_dim(array)
        if level is not None and levels is not None:
            array = array.isel({level: list(levels)})
        left = [dim for dim in self.others if dim in array.dims]
        middle = [] if level is None else [level]
        with errors_of(self.where, f"variable {name!r}"):
            return np.asarray(
                array.transpose(*left, *middle, *self._space).values, np.float32
            )

    def channels(
        self, places: Mapping[str, int], selection: LevelSelection
    ) -> Float[np.ndarray, "channel lat lon"]:
        """Reads all wanted levels of all wanted variables at some positions."""
        fields = [self.read(name, places, levels) for name, levels in selection.items()]
        return np.concatenate([x if x.ndim == 3 else x[None] for x in fields])

    def _variable(self, array: xr.DataArray) -> GridVariable:
        level = self._level_dim(array)
        texts = [text_of(array.attrs, key) for key in ("units", "long_name")]
        if level is None:
            return GridVariable(None, *texts)
        if level not in self.dataset.coords:
            return GridVariable(np.arange(array.sizes[level], dtype=float), *texts)
        coordinate = self.dataset[level]
        values = in_hectopascal(level_values(coordinate, self.where))
        units = level_units(values, coordinate.attrs)
        return GridVariable(values, *texts, level_units=units)

    def _level_dim(self, array: xr.DataArray) -> str | None:
        known = {*self.others, *self._space}
        left = [str(dim) for dim in array.dims if dim not in known]
        if len(left) > 1:
            raise ValueError(
                f"{self.where}: {array.name} has the dims {', '.join(left)} besides "
                f"{', '.join(('latitude', 'longitude', *self.others))}; expected one, "
                "of levels: select from the others, or average over them"
            )
        return left[0] if left else None

    def _coordinate(self, name: str) -> xr.DataArray:
        array = self._axes[_SPACE.index(name)]
        if array is None:
            raise ValueError(
                f"{self.where}: has no coordinate {name} or {name[:3]}; it has "
                f"{', '.join(map(str, self.dataset.variables))}"
            )
        return array


@dataclass(frozen=True, eq=False)
class Alignment:
    """Positions of the points of one grid in another one of the same size.

    Attributes:
        rows, columns: positions; None keeps the order.
        factor: (channel, 1, 1), or () for all channels, to the units of the first grid;
            None keeps the units.
    """

    rows: np.ndarray | None = None
    columns: np.ndarray | None = None
    factor: np.ndarray | None = None

    def __call__(
        self, field: Float[np.ndarray, "... lat lon"]
    ) -> Float[np.ndarray, "... lat lon"]:
        """Reorders a field of the second grid like the first one, and converts it."""
        if self.factor is not None:
            field = field * self.factor
        if self.rows is not None:
            field = field[..., self.rows, :]
        return field if self.columns is None else field[..., self.columns]


def align(
    latitude: np.ndarray,
    longitude: np.ndarray,
    other: tuple[np.ndarray, np.ndarray],
    where: str,
) -> Alignment:
    """Finds the points of a grid in another: rows and columns may be in another order.

    Args:
        latitude, longitude: latitude and longitude of the forecast.
        other: those of the other grid.
        where: description of the other grid, for the error.

    Raises:
        ValueError: the grids differ.
    """
    curved = latitude.ndim == 2 or other[0].ndim == 2
    if curved:
        near = [_near(*pair) for pair in zip((latitude, longitude), other, strict=True)]
        if not all(near):
            raise ValueError(_other_grid(latitude, longitude, other, where))
        return Alignment()
    if (latitude.shape, longitude.shape) != (other[0].shape, other[1].shape):
        raise ValueError(_other_grid(latitude, longitude, other, where))
    try:
        return Alignment(
            places_of(latitude, other[0], "latitude", where, "the forecast"),
            places_of(longitude, other[1], "longitude", where, "the forecast"),
        )
    except ValueError as error:
        text = _other_grid(latitude, longitude, other, where)
        raise ValueError(text) from error


def _near(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether the coordinates of points are equal, also across 360 degrees."""
    if ours.shape != theirs.shape:
        return False
    return bool((np.abs((ours - theirs + 180) % 360 - 180) <= SAME_DEGREES).all())


def _other_grid(
    latitude: np.ndarray,
    longitude: np.ndarray,
    other: tuple[np.ndarray, np.ndarray],
    where: str,
) -> str:
    return (
        f"{where} has another grid: {_describe(*other)}; the forecast has "
        f"{_describe(latitude, longitude)}. Interpolate one of them first"
    )


def _describe(latitude: np.ndarray, longitude: np.ndarray) -> str:
    if latitude.ndim == 2:
        rows, columns = latitude.shape
        return f"{rows} x {columns} points of a curvilinear grid"
    (north, south), (west, east) = latitude[[0, -1]], longitude[[0, -1]]
    return (
        f"{latitude.size} latitudes from {north:g} to {south:g} and {longitude.size} "
        f"longitudes from {west:g} to {east:g}"
    )
