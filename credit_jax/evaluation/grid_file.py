"""Fields of NetCDF files and Zarr stores, for any order of their dims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import xarray as xr
from jaxtyping import Float

from credit_jax.io.errors import errors_of
from credit_jax.named_fields.axes import horizontal, level_values
from credit_jax.named_fields.units import text_of
from credit_jax.named_fields.variables import (
    LevelSelection,
    Variable,
    Variables,
    labeled_levels,
)

_SPACE = ("latitude", "longitude")


@dataclass(frozen=True, eq=False)
class GridFile:
    """An opened file."""

    where: str  # its name, for errors
    dataset: xr.Dataset  # opened; fields are read on access
    others: tuple[str, ...] = ()  # dims that are not levels: times, members
    timed: tuple[str, ...] = ()  # those of them that variables with times have

    @cached_property
    def latitude(self) -> np.ndarray:
        """(lat,) degrees, or (y, x)."""
        return self._coordinate(0)

    @cached_property
    def longitude(self) -> np.ndarray:
        """(lon,) degrees, or (y, x)."""
        return self._coordinate(1)

    @cached_property
    def table(self) -> Variables:
        return Variables(self.where, self.variables, self.latitude, self.longitude)

    @cached_property
    def variables(self) -> dict[str, Variable]:
        """The variables that have rows and columns, by name."""
        return {
            str(name): self._variable(array)
            for name, array in self.dataset.data_vars.items()
            if {*self._space} <= {*array.dims} and len({*self._space}) == 2
        }

    @cached_property
    def _axes(self) -> tuple[xr.DataArray | None, xr.DataArray | None]:
        straight = horizontal(self.dataset, self.where)
        curved = horizontal(self.dataset, self.where, 2)
        rows, columns = (
            b if a is None else a for a, b in zip(straight, curved, strict=True)
        )
        return rows, columns

    @cached_property
    def _space(self) -> tuple[str, str]:
        """Names of the dims of rows and columns."""
        rows, columns = self._axes
        return (
            _SPACE[0] if rows is None else str(rows.dims[0]),
            _SPACE[1] if columns is None else str(columns.dims[-1]),
        )

    def read(
        self, name: str, indices: Mapping[str, int], levels: Sequence[int] | None
    ) -> Float[np.ndarray, "... lat lon"]:
        """Reads a float32 field, (..., level, lat, lon); see `others` for the dots."""
        array = self.dataset[name]
        array = array.isel({k: v for k, v in indices.items() if k in array.dims})
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
        self, indices: Mapping[str, int], selection: LevelSelection
    ) -> Float[np.ndarray, "channel lat lon"]:
        """Reads all wanted levels of all wanted variables at some positions."""
        fields = [
            self.read(name, indices, levels) for name, levels in selection.items()
        ]
        return np.concatenate([x if x.ndim == 3 else x[None] for x in fields])

    def _variable(self, array: xr.DataArray) -> Variable:
        level, values, level_units = self._level_dim(array), None, ""
        if level in self.dataset.coords:
            coordinate = self.dataset[level]
            values, level_units = labeled_levels(
                level_values(coordinate, self.where), coordinate.attrs
            )
        elif level is not None:
            values = np.arange(array.sizes[level], dtype=float)
        return Variable(
            str(array.name),
            values,
            units=text_of(array.attrs, "units"),
            long_name=text_of(array.attrs, "long_name"),
            level_units=level_units,
            constant=not {*self.timed} <= {*array.dims},
        )

    def _level_dim(self, array: xr.DataArray) -> str | None:
        available = {*self.others, *self._space}
        left = [str(dim) for dim in array.dims if dim not in available]
        if len(left) > 1:
            raise ValueError(
                f"{self.where}: {array.name} has the dims {', '.join(left)} besides "
                f"{', '.join((*_SPACE, *self.others))}; expected one, of levels: "
                "select from the others, or average over them"
            )
        return left[0] if left else None

    def _coordinate(self, number: int) -> np.ndarray:
        array, name = self._axes[number], _SPACE[number]
        if array is None:
            raise ValueError(
                f"{self.where}: has no coordinate {name} or {name[:3]}; it has "
                f"{', '.join(sorted(map(str, self.dataset.variables)))}"
            )
        return array.values.astype(np.float64)
