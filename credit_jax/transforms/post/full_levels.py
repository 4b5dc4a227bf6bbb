"""gen1's fields on pressure levels and heights, by way of all levels of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from credit_jax.config import StrictModel
from credit_jax.named_fields import FieldContext
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
    Transform,
)
from credit_jax.transforms.named import with_fields
from credit_jax.transforms.post.diagnostics import (
    GEOPOTENTIAL,
    KELVIN,
    PASCAL,
    SEA_LEVEL_PRESSURE,
    TEMPERATURE,
    Ground,
    derived_key,
    ground_of,
    ground_of_file,
    read_filled,
)

_AIR_PRESSURE = {"standard_name": "air_pressure", "units": "Pa"}


class FullLevelsArgs(StrictModel):
    """Fields on levels of pressure and height, with gen1's names of keys.

    Attributes:
        interp_fields: keys of 3-D variables.
        temperature_var, q_var: keys of temperature, K, and specific humidity, kg / kg.
        surface_pressure_var: key of surface pressure, Pa.
        surface_geopotential_var: key of surface geopotential in `static_source_key`,
            m^2 / s^2.
        surface_geopotential_file: see `PressureInterpArgs`.
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
        key: entry to read and extend.
        static_source_key: entry with static fields.
    """

    interp_fields: tuple[str, ...]
    temperature_var: str
    q_var: str
    surface_pressure_var: str
    surface_geopotential_var: str
    surface_geopotential_file: str | None = None
    pressure_levels: tuple[float, ...] = (500.0, 850.0)
    height_levels: tuple[float, ...] | None = None
    pres_ending: str = "_PRES"
    height_ending: str = "_HEIGHT"
    geopotential_var: str = "Z"
    pressure_3d_var: str = "P"
    model_level_file: str = "ERA5_Lev_Info.nc"
    a_model_name: str = "a_model"
    b_model_name: str = "b_model"
    a_half_name: str = "a_half"
    b_half_name: str = "b_half"
    P0: float = 1.0
    levels: tuple[int, ...] | None = None
    key: str = "y_processed"
    static_source_key: str = "ic_raw"

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


@dataclasses.dataclass(frozen=True, eq=False)
class FullLevels(Transform):
    """Adds variables on pressure levels and heights, pressure and geopotential.

    As gen1's `credit.interp.full_state_pressure_interpolation`: all fields are
    interpolated to all levels of the file, and from there.

    Attributes:
        args: see `FullLevelsArgs`.
        levels: coefficients (a in Pa, b) at the centers of the levels of the data.
        half_levels: those of the interfaces of all levels of the file.
        chosen: position of each level of the data in the file.
        ground: surface geopotential of a file, m^2 / s^2.
        numbers: numbers of the levels of the data in the file; None if it has none.
    """

    args: FullLevelsArgs
    levels: Coefficients
    half_levels: Coefficients
    chosen: tuple[int, ...]
    ground: Ground | None = None
    numbers: CoordinateValues | None = None

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        """See `Transform`."""
        args = self.args
        keys = (args.temperature_var, args.q_var, *args.interp_fields)
        where = f"{args.model_level_file}: {args.a_model_name}, {args.b_model_name}"
        return (LevelFile(where, keys.__contains__, self.numbers),)

    @property
    def output_levels(self) -> dict[str, OutputLevels]:
        """See `Transform`."""
        return self.args.output_levels

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Adds the fields of `output_levels`, and pressure, geopotential and MSLP.

        Raises:
            ValueError: the fields have another number of levels than the coefficients.

        Differs from CREDIT: `P_HEIGHT` is computed (CREDIT writes zeros), and the
        geopotential of levels that a file counts from 0 is that of these levels.
        """
        args = self.args
        surface = read_filled(
            tree, args.key, args.surface_pressure_var, context, PASCAL
        )
        ground = ground_of(tree, args, surface, self.ground, context)
        temperature = read_filled(tree, args.key, args.temperature_var, context, KELVIN)
        self._check(args.temperature_var, temperature)
        pressure = _pressure(self.levels, surface)
        half_a, half_b = self.half_levels
        full = 0.5 * (half_a[:-1] + half_a[1:]), 0.5 * (half_b[:-1] + half_b[1:])
        full_pressure = _pressure(full, surface)

        def on_full_levels(key: str, fill: float = 0.0) -> Any:
            field = read_filled(tree, args.key, key, context, fill)
            self._check(key, field)
            return interpolate_columns(field, pressure, full_pressure)

        warm = on_full_levels(args.temperature_var, KELVIN)
        # Above the ground, so that heights near it do not cancel in float32.
        above = geopotential_of_ifs(
            0.0 * ground, surface, warm, on_full_levels(args.q_var), self.half_levels
        )
        heights = ground + above
        fields = {key: on_full_levels(key) for key in args.interp_fields}
        state = ColumnState(warm, heights, surface, ground)
        derived = self._on_pressure(fields, state, full)
        if args.height_levels:
            derived |= self._on_heights(fields, full_pressure, above / GRAVITY)
        derived |= {
            args.derived(args.geopotential_var): heights[:, np.array(self.chosen)],
            args.derived(args.pressure_3d_var): pressure,
            args.derived("mean_sea_level_pressure", "2d"): mean_sea_level_pressure(
                surface, temperature[:, -1:], ground
            ),
        }
        return with_fields(tree, args.key, derived)

    def describe(self, known: Descriptions) -> Descriptions:
        """Returns the attributes of each field, its long name with an addition."""
        args = self.args
        heights, pressure = (
            args.derived(name) for name in (args.geopotential_var, args.pressure_3d_var)
        )
        attributes_of: dict[str, Any] = {
            heights: GEOPOTENTIAL,
            pressure: _AIR_PRESSURE,
            args.derived("mean_sea_level_pressure", "2d"): SEA_LEVEL_PRESSURE,
        }
        sources = {args.temperature_var: TEMPERATURE, **known, **attributes_of}
        endings = (
            (args.pres_ending, (*args.interp_fields, heights), "pressure levels"),
            (args.height_ending, (*args.interp_fields, pressure), "heights"),
        )
        for ending, keys, where in endings:
            for key in keys:
                attributes = dict(sources.get(key, {}))
                if "long_name" in attributes:
                    attributes["long_name"] += f" on {where}"
                name = derived_key(key, ending)
                if name in self.output_levels:
                    attributes_of[name] = attributes
        return attributes_of

    def _check(self, key: str, field: Any) -> None:
        """Raises a ValueError if a field has another number of levels."""
        count = len(self.levels[0])
        if field.shape[1] != count:
            raise ValueError(
                f"full_state_pressure_interpolation: {key} has {field.shape[1]} "
                f"levels, {self.args.model_level_file} gives the coefficients of "
                f"{count}; give `levels`, their numbers in that file"
            )

    def _on_pressure(
        self, fields: dict[str, Any], state: ColumnState, full: Coefficients
    ) -> dict[str, Any]:
        """Fields and geopotential on `pressure_levels`."""
        args = self.args
        pressures = np.asarray(args.pressure_levels) * 100.0
        *others, warm, heights = to_pressure_levels(
            list(fields.values()), state, full, pressures
        )
        interpolated = dict(zip(fields, others, strict=True))
        if args.temperature_var in interpolated:
            interpolated[args.temperature_var] = warm
        interpolated[args.derived(args.geopotential_var)] = heights
        return {derived_key(k, args.pres_ending): x for k, x in interpolated.items()}

    def _on_heights(
        self, fields: dict[str, Any], pressure: Any, heights: Any
    ) -> dict[str, Any]:
        """Fields and pressure on `height_levels`, from the lowest level upward."""
        args = self.args
        fields = {**fields, args.derived(args.pressure_3d_var): pressure}
        points = by_level(args.height_levels, pressure)
        return {
            derived_key(key, args.height_ending): interpolate_linearly(
                x[:, ::-1], heights[:, ::-1], points
            )
            for key, x in fields.items()
        }


def build_full_levels(args: FullLevelsArgs) -> FullLevels:
    """Builds the block; reads the coefficients.

    Raises:
        ValueError: a level is not in the file, or its levels are not from the top down.
    """
    path, names = args.model_level_file, (args.a_model_name, args.b_model_name)
    levels = read_coefficients(path, *names)
    numbers = level_numbers(path, args.a_model_name)
    half_levels = read_coefficients(path, args.a_half_name, args.b_half_name)
    chosen = _places(args, numbers or tuple(range(1, len(levels[0]) + 1)))
    index = list(chosen)
    picked = args.P0 * levels[0][index], levels[1][index]
    half_levels = args.P0 * half_levels[0], half_levels[1]
    if not (rises(*picked) and rises(*half_levels)):
        raise ValueError(
            f"full_state_pressure_interpolation: levels of {path} must be from the top "
            "down"
        )
    if numbers is not None:
        numbers = tuple(numbers[place] for place in chosen)
    return FullLevels(args, picked, half_levels, chosen, ground_of_file(args), numbers)


def _places(args: FullLevelsArgs, numbers: Sequence[float]) -> tuple[int, ...]:
    """Position of each level of the data among those of the file."""
    if args.levels is None:
        return tuple(range(len(numbers)))
    places = {int(number): place for place, number in enumerate(numbers)}
    missing = [level for level in args.levels if level not in places]
    if missing:
        raise ValueError(
            f"full_state_pressure_interpolation: {args.model_level_file} has levels "
            f"{min(places)} to {max(places)}, but `levels` asks for {missing}"
        )
    return tuple(places[level] for level in args.levels)


def _pressure(levels: Coefficients, surface: Any) -> Any:
    """Pressure a + b ps, Pa."""
    return by_level(levels[0], surface) + by_level(levels[1], surface) * surface
