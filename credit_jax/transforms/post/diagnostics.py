"""Diagnostics: geopotential, sea level pressure, fields on pressure levels.

They read `y_processed` and the static surface geopotential of `ic_raw`, in physical
units, and add fields to `y_processed`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from credit_jax.config import StrictModel
from credit_jax.io.errors import errors_of
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.coordinates import CoordinateValues
from credit_jax.physics.arrays import namespace
from credit_jax.physics.files import (
    Coefficients,
    level_numbers,
    read_coefficients,
    read_surface,
)
from credit_jax.physics.geopotential import geopotential
from credit_jax.physics.interpolation import rises
from credit_jax.physics.pressure_levels import (
    ColumnState,
    mean_sea_level_pressure,
    to_pressure_levels,
)
from credit_jax.physics.rows import fill_padding, local_rows
from credit_jax.transforms.base import (
    PRESSURE,
    Descriptions,
    FieldTree,
    LevelFile,
    OutputLevels,
    Transform,
    variable_of,
)
from credit_jax.transforms.named import get_field, with_fields

Ground: TypeAlias = Float[np.ndarray, "lat lon"]

# Values for padding rows, for which all formulas are finite.
KELVIN, PASCAL = 280.0, 1e5
# CF attributes, with CREDIT's names (`forecast/metadata/era5.yaml`).
GEOPOTENTIAL = {
    "standard_name": "geopotential",
    "long_name": "Geopotential",
    "units": "m**2 s**-2",
}
TEMPERATURE = {
    "standard_name": "air_temperature",
    "long_name": "Temperature",
    "units": "K",
}
SEA_LEVEL_PRESSURE = {
    "standard_name": "air_pressure_at_mean_sea_level",
    "long_name": "Mean sea level pressure",
    "units": "Pa",
}


class GroundArgs(StrictModel):
    """Keys that the diagnostics share.

    Attributes:
        surface_pressure_var: key of surface pressure, Pa.
        surface_geopotential_var: key of surface geopotential in `static_source_key`,
            m^2 / s^2.
        key: entry to read and extend.
        static_source_key: entry with static fields.
        surface_geopotential_file: NetCDF or Zarr file on the grid of the fields, from
            which surface geopotential is read instead, by the last part of its key;
            CREDIT has no such key.
    """

    surface_pressure_var: str = "ARCO_ERA5/prognostic/2d/surface_pressure"
    surface_geopotential_var: str = "ARCO_ERA5/static/2d/geopotential_at_surface"
    key: str = "y_processed"
    static_source_key: str = "ic_raw"
    surface_geopotential_file: str | None = None


class LevelArgs(GroundArgs):
    """Keys of the diagnostics of model levels.

    Attributes:
        temperature_var: key of temperature, K.
        level_info_file: file with the coefficients of the levels; a name without a
            folder may be that of a file of this package.
        levels: levels of the data, counted from 1; null takes all.
        chunk_size: no effect; all columns are computed at once.
    """

    temperature_var: str = "ARCO_ERA5/prognostic/3d/temperature"
    level_info_file: str = "ERA5_Lev_Info.nc"
    levels: tuple[int, ...] | None = None
    chunk_size: int = 1000


class SeaLevelArgs(GroundArgs):
    """Mean sea level pressure, from surface pressure and temperature.

    Attributes:
        output_name: key of the result, Pa.
        temperature_var: key of temperature near the surface, K.
    """

    output_name: str = "ARCO_ERA5/derived_diagnostic/2d/mean_sea_level_pressure"
    temperature_var: str = "ARCO_ERA5/prognostic/2d/2m_temperature"


class GeopotentialArgs(LevelArgs):
    """Geopotential of hybrid levels, by the hydrostatic equation.

    Attributes:
        output_name: key of the result, m^2 / s^2.
        specific_humidity_var: key of specific humidity, kg / kg.
        flip_vertical: whether levels are from the top down.
        model_a_half_var, model_b_half_var: names of the coefficients a (Pa) and b of
            the interfaces.
    """

    output_name: str = "ARCO_ERA5/derived_diagnostic/3d/geopotential"
    specific_humidity_var: str = "ARCO_ERA5/prognostic/3d/specific_humidity"
    flip_vertical: bool = True
    model_a_half_var: str = "a_half"
    model_b_half_var: str = "b_half"


class PressureInterpArgs(LevelArgs):
    """Fields of hybrid levels, interpolated to levels of pressure.

    Attributes:
        pressure_levels: pressure levels, hPa.
        interp_variables: keys of 3-D variables, which have the value of the lowest
            level below the ground.
        geopotential_var: key of geopotential, m^2 / s^2, such as the result of
            `geopotential_diagnostic`.
        output_suffix: suffix of the names of the results.
        temp_height: height above the ground, m; the surface temperature is derived from
            the nearest level.
        model_a_var, model_b_var: names of the coefficients a (Pa) and b at the centers
            of levels.
    """

    pressure_levels: tuple[float, ...] = (500.0, 850.0)
    interp_variables: tuple[str, ...] = (
        "ARCO_ERA5/prognostic/3d/u_component_of_wind",
        "ARCO_ERA5/prognostic/3d/v_component_of_wind",
        "ARCO_ERA5/prognostic/3d/specific_humidity",
    )
    geopotential_var: str = "ARCO_ERA5/derived_diagnostic/3d/geopotential"
    output_suffix: str = "_PRES"
    temp_height: float = 150.0
    model_a_var: str = "a_model"
    model_b_var: str = "b_model"


@dataclasses.dataclass(frozen=True, eq=False)
class SeaLevelPressure(Transform):
    """Adds pressure at mean sea level.

    Attributes:
        args: see `SeaLevelArgs`.
        ground: surface geopotential of a file, m^2 / s^2.
    """

    args: SeaLevelArgs
    ground: Ground | None = None

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Adds `output_name`, (batch, 1, time, lat, lon) in Pa."""
        args = self.args
        surface = surface_of(tree, args, context)
        pressure = mean_sea_level_pressure(
            surface,
            read_filled(tree, args.key, args.temperature_var, context, KELVIN),
            ground_of(tree, args, surface, self.ground, context),
        )
        return with_fields(tree, args.key, {args.output_name: pressure})

    def describe(self, known: Descriptions) -> Descriptions:
        """Returns the attributes of the result."""
        return {self.args.output_name: SEA_LEVEL_PRESSURE}


@dataclasses.dataclass(frozen=True, eq=False)
class Geopotential(Transform):
    """Adds the geopotential of the model's levels.

    Attributes:
        args: see `GeopotentialArgs`.
        half_levels: coefficients (a in Pa, b) of the interfaces.
        ground: surface geopotential of a file, m^2 / s^2.
        numbers: numbers of the levels in their file; None if it has none.
    """

    args: GeopotentialArgs
    half_levels: Coefficients
    ground: Ground | None = None
    numbers: CoordinateValues | None = None

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        """See `Transform`."""
        args = self.args
        keys = (args.temperature_var, args.specific_humidity_var)
        names = f"{args.model_a_half_var}, {args.model_b_half_var}"
        where = f"{args.level_info_file}: {names}"
        return (LevelFile(where, keys.__contains__, self.numbers),)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Adds `output_name`, (batch, level, time, lat, lon) in m^2 / s^2."""
        args = self.args
        surface = surface_of(tree, args, context)
        fields = (
            ground_of(tree, args, surface, self.ground, context),
            surface,
            read_filled(tree, args.key, args.temperature_var, context, KELVIN),
            read_filled(tree, args.key, args.specific_humidity_var, context, 0.0),
        )
        names = args.model_a_half_var, args.model_b_half_var
        with errors_of(args.level_info_file, *names):
            heights = geopotential(
                *fields, self.half_levels, flip_vertical=args.flip_vertical
            )
        return with_fields(tree, args.key, {args.output_name: heights})

    def describe(self, known: Descriptions) -> Descriptions:
        """Returns the attributes of the result."""
        return {self.args.output_name: GEOPOTENTIAL}


@dataclasses.dataclass(frozen=True, eq=False)
class PressureInterp(Transform):
    """Adds variables on pressure levels.

    Attributes:
        args: see `PressureInterpArgs`.
        levels: coefficients (a in Pa, b) at the centers of the levels of the data.
        ground: surface geopotential of a file, m^2 / s^2.
        numbers: numbers of these levels in their file; None if it has none.
    """

    args: PressureInterpArgs
    levels: Coefficients
    ground: Ground | None = None
    numbers: CoordinateValues | None = None

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        """See `Transform`."""
        args = self.args
        keys = (args.temperature_var, *args.interp_variables)
        where = f"{args.level_info_file}: {args.model_a_var}, {args.model_b_var}"
        return (LevelFile(where, keys.__contains__, self.numbers),)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Adds one (batch, pressure, time, lat, lon) field for each variable."""
        args = self.args
        down = slice(None, None, 1 if rises(*self.levels) else -1)

        def column(key: str, fill: float) -> Any:
            return read_filled(tree, args.key, key, context, fill)[:, down]

        surface = surface_of(tree, args, context)
        state = ColumnState(
            column(args.temperature_var, KELVIN),
            column(args.geopotential_var, 0.0),
            surface,
            ground_of(tree, args, surface, self.ground, context),
        )
        fields = [column(key, 0.0) for key in args.interp_variables]
        with errors_of(args.level_info_file, args.model_a_var, args.model_b_var):
            out = to_pressure_levels(
                fields,
                state,
                (self.levels[0][down], self.levels[1][down]),
                np.asarray(args.pressure_levels) * 100.0,
                temp_height=args.temp_height,
            )
        interpolated = dict(zip(self._names.values(), out, strict=True))
        return with_fields(tree, args.key, interpolated)

    @property
    def output_levels(self) -> dict[str, OutputLevels]:
        """See `Transform`."""
        return dict.fromkeys(
            self._names.values(), (PRESSURE, self.args.pressure_levels)
        )

    @property
    def _names(self) -> dict[str, str]:
        """Key of each variable -> key of it on pressure levels."""
        args = self.args
        keys = (*args.interp_variables, args.temperature_var, args.geopotential_var)
        return {key: derived_key(key, args.output_suffix) for key in keys}

    def describe(self, known: Descriptions) -> Descriptions:
        """Returns the attributes of each variable, its long name with an addition."""
        args = self.args
        defaults = {args.temperature_var: TEMPERATURE}
        defaults |= {args.geopotential_var: GEOPOTENTIAL}
        descriptions = {}
        for key, name in self._names.items():
            attributes = {**defaults.get(key, {}), **known.get(key, {})}
            if "long_name" in attributes:
                attributes["long_name"] += " on pressure levels"
            descriptions[name] = attributes
        return descriptions


def derived_key(var_key: str, suffix: str) -> str:
    """Returns the key of a variable on pressure levels.

    >>> derived_key("ERA5/prognostic/3d/T", "_PRES")
    'ERA5/derived_diagnostic/3d/T_PRES'
    """
    source, _, dims, name = var_key.split("/")[:4]
    return f"{source}/derived_diagnostic/{dims}/{name}{suffix}"


def build_sea_level(args: SeaLevelArgs) -> SeaLevelPressure:
    """Builds the block."""
    return SeaLevelPressure(args, ground_of_file(args))


def build_geopotential(args: GeopotentialArgs) -> Geopotential:
    """Builds the block; reads the coefficients."""
    half_levels = read_coefficients(
        args.level_info_file,
        args.model_a_half_var,
        args.model_b_half_var,
        args.levels,
        interfaces=True,
    )
    numbers = level_numbers(
        args.level_info_file, args.model_a_half_var, args.levels, between=True
    )
    return Geopotential(args, half_levels, ground_of_file(args), numbers)


def build_pressure_interp(args: PressureInterpArgs) -> PressureInterp:
    """Builds the block; reads the coefficients."""
    names = (args.model_a_var, args.model_b_var)
    levels = read_coefficients(args.level_info_file, *names, args.levels)
    numbers = level_numbers(args.level_info_file, args.model_a_var, args.levels)
    return PressureInterp(args, levels, ground_of_file(args), numbers)


def read_filled(
    tree: FieldTree, part: str, key: str, context: FieldContext | None, fill: float
) -> Any:
    """A field whose padding rows have a value for which all formulas are finite."""
    return fill_padding(get_field(tree, part, key), fill, context)


def surface_of(tree: FieldTree, args: GroundArgs, context: FieldContext | None) -> Any:
    """Surface pressure, Pa, of the entry that a block extends."""
    return read_filled(tree, args.key, args.surface_pressure_var, context, PASCAL)


def ground_of_file(args: Any) -> Ground | None:
    """Surface geopotential of `surface_geopotential_file`; None without one."""
    path = args.surface_geopotential_file
    name = variable_of(args.surface_geopotential_var)
    return None if path is None else read_surface(path, name)


def ground_of(
    tree: FieldTree,
    args: Any,
    surface: Any,
    of_file: Ground | None,
    context: FieldContext | None,
) -> Any:
    """Surface geopotential at the first time, repeated for ensemble members.

    Args:
        tree: has static fields.
        args: arguments of the block.
        surface: a field without levels, which gives rows and dtype.
        of_file: field, as returned by `ground_of_file`, which takes precedence.
        context: context of the step, or None.
    """
    if of_file is not None:
        rows = local_rows(of_file, surface, context)
        return namespace(surface).broadcast_to(rows, surface[:, :, :1].shape)
    key = args.surface_geopotential_var
    field = read_filled(tree, args.static_source_key, key, context, 0.0)[:, :, :1]
    return field if context is None else context.repeat_members(field)
