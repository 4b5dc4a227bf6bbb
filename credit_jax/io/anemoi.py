"""Stores of anemoi-datasets: a Zarr array `data` (time, variable, ensemble, cell).

Attributes of the group describe the variables: `variables` their names, of which a
variable on a level is "t_500", `variables_metadata` what MARS calls them; the arrays
`mean` and `stdev` (variable) are statistics. `anemoi.datasets` itself is not needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
import zarr

from credit_jax.io.open_files import open_group

DATA = "data"
DIMS = ("time", "variable", "ensemble", "cell")


@dataclass(frozen=True)
class AnemoiStore:
    """A store whose metadata have been checked; values are read on access."""

    path: str  # path or URL of the store
    group: zarr.Group  # its group

    @property
    def data(self) -> zarr.Array:
        """The array (time, variable, ensemble, cell) of all values."""
        return self.array(DATA)

    def array(self, *names: str) -> zarr.Array:
        """Returns the array with the first of some names that the store has."""
        for name in names:
            array = self.group.get(name)
            if isinstance(array, zarr.Array):
                return array
        raise ValueError(
            f"{self.path}: no array {' or '.join(names)}, which stores of "
            f"anemoi-datasets have; it has {', '.join(sorted(self.group)) or 'nothing'}"
        )

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """Names of the variables, in order of `data`."""
        names = self.group.attrs.get("variables")
        if not isinstance(names, list) or len(names) != self.data.shape[1]:
            raise ValueError(
                f"{self.path}: the attribute variables is {str(names)[:80]}, expected "
                f"names of the {self.data.shape[1]} variables of data"
            )
        return tuple(map(str, names))

    def metadata(self, variable: str) -> Mapping[str, Any]:
        """Metadata of a variable: units, and what MARS calls it."""
        every: Any = self.group.attrs.get("variables_metadata") or {}
        return every.get(variable) or {}

    @cached_property
    def levels(self) -> dict[str, dict[float, int]]:
        """Name of a variable on levels -> level -> position in `data`."""
        by_name: dict[str, dict[float, int]] = {}
        by_parameter: dict[str, dict[float, int]] = {}
        for index, variable in enumerate(self.variables):
            name, _, level = variable.rpartition("_")
            mars = self.metadata(variable).get("mars") or {}
            level = mars.get("levelist", level)
            try:
                value = float(level)
            except (TypeError, ValueError):
                continue
            if name and variable == f"{name}_{level}":
                by_name.setdefault(name, {})[value] = index
            by_parameter.setdefault(str(mars.get("param", name)), {})[value] = index
        # The name of "t_500" without the level, or else the parameter of MARS.
        return by_parameter | by_name

    def levels_of(self, variable: str) -> tuple[float, ...]:
        """The levels of a variable, in order of `data`."""
        if variable not in self.levels:
            raise ValueError(
                f"{self.path}: no variable {variable!r} on levels; those are "
                f"{', '.join(self.levels) or 'none'}"
            )
        return tuple(self.levels[variable])

    def places(self, variable: str, levels: tuple[float, ...] | None) -> list[int]:
        """Positions of a variable in `data`, of some levels in order, None without."""
        if levels is None:
            if variable not in self.variables:
                raise ValueError(
                    f"{self.path}: no variable {variable!r}; there are "
                    f"{', '.join(self.variables)}"
                )
            return [self.variables.index(variable)]
        available = self.levels_of(variable)
        missing = [level for level in levels if level not in available]
        if missing:
            raise ValueError(
                f"{self.path}: {variable} has no levels {missing}, expected some of "
                f"{[*available]}"
            )
        return [self.levels[variable][level] for level in levels]

    def statistics(self, name: str) -> xr.Dataset:
        """Returns the "mean" or "stdev" of all variables, on levels also by level."""
        values = np.asarray(self.array(name)[:])
        units = {v: self.metadata(v).get("units") for v in self.variables}
        variables: dict[str, Any] = {
            variable: ((), value, {"units": units[variable]} if units[variable] else {})
            for variable, value in zip(self.variables, values, strict=True)
        }
        coordinates = {}
        for variable, indices in self.levels.items():
            dim, unit = (
                f"level_of_{variable}",
                units[self.variables[min(indices.values())]],
            )
            attributes = {"units": unit} if unit else {}
            variables[variable] = (dim,), values[[*indices.values()]], attributes
            coordinates[dim] = (dim,), np.array([*indices])
        return xr.Dataset(variables, coordinates)


def is_anemoi(path: str | os.PathLike[str]) -> bool:
    """Whether a local folder is a store in this layout."""
    if not any(
        os.path.isfile(os.path.join(path, DATA, n)) for n in ("zarr.json", ".zarray")
    ):
        return False
    return "variables" in open_group(os.fspath(path)).attrs


def open_anemoi_store(path: str) -> AnemoiStore:
    """Opens a store; no values are read."""
    store = AnemoiStore(path, open_group(path))
    if store.data.ndim != len(DIMS):
        raise ValueError(
            f"{path}: data has {store.data.ndim} dims, expected "
            f"{', '.join(DIMS)}; other layouts of anemoi-datasets are not read"
        )
    return store
