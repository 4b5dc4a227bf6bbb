"""gen1's fields on pressure levels and heights, by way of all levels of a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import PrivateAttr

from credit_jax.config.components import PackagedFile
from credit_jax.named_fields.coordinates import CoordinateValues
from credit_jax.physics.arrays import GRAVITY, by_level
from credit_jax.physics.files import (
    Coefficients,
    level_numbers,
    read_coefficients,
)
from credit_jax.physics.geopotential import geopotential_of_ifs
from credit_jax.physics.interpolation import (
    interpolate_columns,
    interpolate_linearly,
    rises,
)
from credit_jax.physics.pressure_levels import (
    ColumnState,
    mean_sea_level_pressure,
    to_pressure_levels,
)
from credit_jax.transforms.base import (
    HEIGHT,
    PRESSURE,
    Descriptions,
    FieldTree,
    LevelFile,
    OutputLevels,
    StepContext,
    postblock,
    with_fields,
)
from credit_jax.transforms.diagnostics import (
    GEOPOTENTIAL,
    KELVIN,
    SEA_LEVEL_PRESSURE,
    TEMPERATURE,
    OverGround,
    derived_key,
)

_AIR_PRESSURE = {"standard_name": "air_pressure", "units": "Pa"}


@postblock("full_state_pressure_interpolation")
class FullLevels(OverGround):
    """Fields on levels of pressure and height, with gen1's names of keys.

    As gen1's `credit.interp.full_state_pressure_interpolation`: all fields are
    interpolated to all levels of the file, and from there.

    Attributes:
        interp_fields: keys of 3-D variables.
        temperature_var, q_var: keys of temperature, K, and specific humidity, kg / kg.
        pressure_levels: pressure levels, hPa.
        height_levels: heights above the ground, m; null makes no fields on heights.
        pres_ending, height_ending: suffixes of the names of the results.
        geopotential_var: name of the geopotential of the levels of the data, to which
            `pres_ending` is appended, too.
        pressure_3d_var: name of the pressure of the levels of the data.
        model_level_file: file with the coefficients; a name without a folder may be
            that of a file of this package.
        a_model_name, b_model_name: names of the coefficients at the centers of levels.
        a_half_name, b_half_name: names of the coefficients of the interfaces.
        P0: factor of a, in the unit of pressure over that of the file.
        levels: levels of the data, by their numbers in the file; null takes all.
    """

    interp_fields: tuple[str, ...]
    temperature_var: str
    q_var: str
    pressure_levels: tuple[float, ...] = (500.0, 850.0)
    height_levels: tuple[float, ...] | None = None
    pres_ending: str = "_PRES"
    height_ending: str = "_HEIGHT"
    geopotential_var: str = "Z"
    pressure_3d_var: str = "P"
    model_level_file: PackagedFile = "ERA5_Lev_Info.nc"
    a_model_name: str = "a_model"
    b_model_name: str = "b_model"
    a_half_name: str = "a_half"
    b_half_name: str = "b_half"
    P0: float = 1.0
    levels: tuple[int, ...] | None = None

    # At the centers of the levels of the data, and the interfaces of the whole file.
    _levels: Coefficients = PrivateAttr()
    _half_levels: Coefficients = PrivateAttr()
    # Position of each level of the data in the file, and its number there, if any.
    _chosen: tuple[int, ...] = PrivateAttr()
    _numbers: CoordinateValues | None = PrivateAttr()

    def open(self) -> None:
        """Reads the coefficients.

        Raises:
            ValueError: a level is not in the file, or its levels are not from the top
                down.
        """
        super().open()
        path, a = self.model_level_file, self.a_model_name
        levels = read_coefficients(path, a, self.b_model_name)
        numbers = level_numbers(path, a)
        half_levels = read_coefficients(path, self.a_half_name, self.b_half_name)
        self._chosen = self._positions(numbers or range(1, len(levels[0]) + 1))
        index = list(self._chosen)
        self._levels = self.P0 * levels[0][index], levels[1][index]
        self._half_levels = self.P0 * half_levels[0], half_levels[1]
        if not (rises(*self._levels) and rises(*self._half_levels)):
            raise ValueError(f"levels of {path} must be from the top down")
        self._numbers = numbers and tuple(numbers[k] for k in self._chosen)

    def _positions(self, numbers: Sequence[float]) -> tuple[int, ...]:
        """Position of each level of the data among those of the file."""
        if self.levels is None:
            return tuple(range(len(numbers)))
        positions = {int(number): k for k, number in enumerate(numbers)}
        missing = [level for level in self.levels if level not in positions]
        if missing:
            raise ValueError(
                f"{self.model_level_file} has levels {min(positions)} to "
                f"{max(positions)}, but `levels` asks for {missing}"
            )
        return tuple(positions[level] for level in self.levels)

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        keys = (self.temperature_var, self.q_var, *self.interp_fields)
        origin = f"{self.model_level_file}: {self.a_model_name}, {self.b_model_name}"
        return (LevelFile(origin, keys.__contains__, self._numbers),)

    def derived(self, name: str, dims: str = "3d") -> str:
        """Key of a field that the block makes, by its name."""
        source = self.temperature_var.split("/")[0]
        return f"{source}/derived_diagnostic/{dims}/{name}"

    @property
    def output_levels(self) -> dict[str, OutputLevels]:
        """Key of each field on other levels than the data's -> its coordinate."""
        on_pressure = (*self.interp_fields, self.derived(self.geopotential_var))
        coordinates: dict[str, OutputLevels] = {
            derived_key(key, self.pres_ending): (PRESSURE, self.pressure_levels)
            for key in on_pressure
        }
        if self.height_levels is not None:
            on_heights = (*self.interp_fields, self.derived(self.pressure_3d_var))
            for key in on_heights:
                name = derived_key(key, self.height_ending)
                coordinates[name] = (HEIGHT, self.height_levels)
        return coordinates

    @property
    def output_keys(self) -> tuple[str, ...]:
        """Keys of all fields that the block makes."""
        names = (self.geopotential_var, self.pressure_3d_var)
        sea_level = self.derived("mean_sea_level_pressure", "2d")
        return (*self.output_levels, *map(self.derived, names), sea_level)

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Adds the fields of `output_levels`, and pressure, geopotential and MSLP.

        Raises:
            ValueError: the fields have another number of levels than the coefficients.

        Differs from CREDIT: `P_HEIGHT` is computed (CREDIT writes zeros), and the
        geopotential of levels that a file counts from 0 is that of these levels.
        """
        surface = self.surface_of(tree, context)
        ground = self.ground_of(tree, surface, context)
        temperature = self.filled(tree, self.temperature_var, context, KELVIN)
        self._check(self.temperature_var, temperature)
        pressure = _pressure(self._levels, surface)
        half_a, half_b = self._half_levels
        full = 0.5 * (half_a[:-1] + half_a[1:]), 0.5 * (half_b[:-1] + half_b[1:])
        full_pressure = _pressure(full, surface)

        def on_full_levels(key: str, fill: float = 0.0) -> Any:
            field = self.filled(tree, key, context, fill)
            self._check(key, field)
            return interpolate_columns(field, pressure, full_pressure)

        warm = on_full_levels(self.temperature_var, KELVIN)
        # Above the ground, so that heights near it do not cancel in float32.
        above = geopotential_of_ifs(
            0.0 * ground, surface, warm, on_full_levels(self.q_var), self._half_levels
        )
        heights = ground + above
        fields = {key: on_full_levels(key) for key in self.interp_fields}
        state = ColumnState(warm, heights, surface, ground)
        derived = self._on_pressure(fields, state, full)
        if self.height_levels:
            derived |= self._on_heights(fields, full_pressure, above / GRAVITY)
        derived |= {
            self.derived(self.geopotential_var): heights[:, np.array(self._chosen)],
            self.derived(self.pressure_3d_var): pressure,
            self.derived("mean_sea_level_pressure", "2d"): mean_sea_level_pressure(
                surface, temperature[:, -1:], ground
            ),
        }
        return with_fields(tree, self.key, derived)

    def describe(self, units: Descriptions) -> Descriptions:
        """Returns the attributes of each field, its long name with an addition."""
        heights, pressure = (
            self.derived(name) for name in (self.geopotential_var, self.pressure_3d_var)
        )
        attributes_of: dict[str, Any] = {
            heights: GEOPOTENTIAL,
            pressure: _AIR_PRESSURE,
            self.derived("mean_sea_level_pressure", "2d"): SEA_LEVEL_PRESSURE,
        }
        sources = {self.temperature_var: TEMPERATURE, **units, **attributes_of}
        endings = (
            (self.pres_ending, (*self.interp_fields, heights), "pressure levels"),
            (self.height_ending, (*self.interp_fields, pressure), "heights"),
        )
        for ending, keys, origin in endings:
            for key in keys:
                attributes = dict(sources.get(key, {}))
                if "long_name" in attributes:
                    attributes["long_name"] += f" on {origin}"
                name = derived_key(key, ending)
                if name in self.output_levels:
                    attributes_of[name] = attributes
        return attributes_of

    def _check(self, key: str, field: Any) -> None:
        """Raises a ValueError if a field has another number of levels."""
        count = len(self._levels[0])
        if field.shape[1] != count:
            raise ValueError(
                f"{key} has {field.shape[1]} "
                f"levels, {self.model_level_file} gives the coefficients of "
                f"{count}; give `levels`, their numbers in that file"
            )

    def _on_pressure(
        self, fields: dict[str, Any], state: ColumnState, full: Coefficients
    ) -> dict[str, Any]:
        """Fields and geopotential on `pressure_levels`."""
        pressures = np.asarray(self.pressure_levels) * 100.0
        *others, warm, heights = to_pressure_levels(
            list(fields.values()), state, full, pressures
        )
        interpolated = dict(zip(fields, others, strict=True))
        if self.temperature_var in interpolated:
            interpolated[self.temperature_var] = warm
        interpolated[self.derived(self.geopotential_var)] = heights
        return {derived_key(k, self.pres_ending): x for k, x in interpolated.items()}

    def _on_heights(
        self, fields: dict[str, Any], pressure: Any, heights: Any
    ) -> dict[str, Any]:
        """Fields and pressure on `height_levels`, from the lowest level upward."""
        fields = {**fields, self.derived(self.pressure_3d_var): pressure}
        points = by_level(self.height_levels, pressure)
        return {
            derived_key(key, self.height_ending): interpolate_linearly(
                x[:, ::-1], heights[:, ::-1], points
            )
            for key, x in fields.items()
        }


def _pressure(levels: Coefficients, surface: Any) -> Any:
    """Pressure a + b ps, Pa."""
    return by_level(levels[0], surface) + by_level(levels[1], surface) * surface
