"""Diagnostics: geopotential, sea level pressure, fields on pressure levels.

They read `y_processed` and the static surface geopotential of `ic_raw`, in physical
units, and add fields to `y_processed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
from jaxtyping import Float
from pydantic import PrivateAttr

from credit_jax.config.components import FilePath, PackagedFile
from credit_jax.io.errors import errors_of
from credit_jax.named_fields.coordinates import CoordinateValues
from credit_jax.physics import arrays, files, vertical
from credit_jax.physics.arrays import fill_padding
from credit_jax.physics.files import Coefficients
from credit_jax.transforms import base
from credit_jax.transforms.base import FieldTree, StepContext, Transform
from credit_jax.transforms.levels import OfLevels

Ground: TypeAlias = Float[np.ndarray, "lat lon"]

# Values for padding rows, for which all formulas are finite.
KELVIN, PASCAL = 280.0, 1e5
# CF attributes, with CREDIT's names (`config/metadata/era5.yaml`).
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


class OverGround(Transform):
    """A diagnostic of the air over the ground, whose geopotential it reads.

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

    needs: ClassVar = ("ic_raw",)

    surface_pressure_var: str
    surface_geopotential_var: str
    key: str = "y_processed"
    static_source_key: str = "ic_raw"
    surface_geopotential_file: FilePath | None = None

    # Surface geopotential of the file, m^2 / s^2; None without one.
    _ground: Ground | None = PrivateAttr(None)

    def open(self) -> None:
        """Reads the surface geopotential, if it is in a file."""
        if self.surface_geopotential_file is not None:
            name = base.variable_of(self.surface_geopotential_var)
            self._ground = files.read_surface(self.surface_geopotential_file, name)

    def filled(
        self, tree: FieldTree, key: str, context: StepContext, fill: float
    ) -> Any:
        """A field of `key` whose padding rows have a value that is safe in formulas."""
        return fill_padding(base.get_field(tree, self.key, key), fill, context)

    def ground_of(self, tree: FieldTree, surface: Any, context: StepContext) -> Any:
        """Surface geopotential at the first time, repeated for ensemble members."""
        if self._ground is not None:
            rows = arrays.local_rows(self._ground, surface, context)
            return arrays.namespace(surface).broadcast_to(rows, surface[:, :, :1].shape)
        field = base.get_field(
            tree, self.static_source_key, self.surface_geopotential_var
        )
        field = fill_padding(field, 0.0, context)[:, :, :1]
        return field if context is None else context.repeat_members(field)


class _OfEra5(OverGround):
    surface_pressure_var: str = "ARCO_ERA5/prognostic/2d/surface_pressure"
    surface_geopotential_var: str = "ARCO_ERA5/static/2d/geopotential_at_surface"


class _OfModelLevels(OfLevels, _OfEra5):
    """A diagnostic of model levels.

    Attributes:
        temperature_var: key of temperature, K.
        level_info_file: file with the coefficients of the levels; a name without a
            folder may be that of a file of this package.
        levels: levels of the data, counted from 1; null takes all.
        chunk_size: no effect; all columns are computed at once.
    """

    temperature_var: str = "ARCO_ERA5/prognostic/3d/temperature"
    level_info_file: PackagedFile = "ERA5_Lev_Info.nc"
    levels: tuple[int, ...] | None = None
    chunk_size: int = 1000


@base.postblock("mslp_diagnostic")
class SeaLevelPressure(_OfEra5):
    """Mean sea level pressure, from surface pressure and temperature.

    Attributes:
        output_name: key of the result, Pa.
        temperature_var: key of temperature near the surface, K.
    """

    output_name: str = "ARCO_ERA5/derived_diagnostic/2d/mean_sea_level_pressure"
    temperature_var: str = "ARCO_ERA5/prognostic/2d/2m_temperature"

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Adds `output_name`, (batch, 1, time, lat, lon) in Pa."""
        surface = self.filled(tree, self.surface_pressure_var, context, PASCAL)
        pressure = vertical.mean_sea_level_pressure(
            surface,
            self.filled(tree, self.temperature_var, context, KELVIN),
            self.ground_of(tree, surface, context),
        )
        return base.with_fields(tree, self.key, {self.output_name: pressure})

    def describe(self, units: base.Descriptions) -> base.Descriptions:
        return {self.output_name: SEA_LEVEL_PRESSURE}


@base.postblock("geopotential_diagnostic")
class Geopotential(_OfModelLevels):
    """Geopotential of hybrid levels, by the hydrostatic equation.

    Attributes:
        output_name: key of the result, m^2 / s^2.
        specific_humidity_var: key of specific humidity, kg / kg.
        flip_vertical: whether levels are from the top down.
        model_a_half_var, model_b_half_var: names of the coefficients a (Pa) and b of
            the interfaces.
    """

    on_levels: ClassVar = ("temperature_var", "specific_humidity_var")

    output_name: str = "ARCO_ERA5/derived_diagnostic/3d/geopotential"
    specific_humidity_var: str = "ARCO_ERA5/prognostic/3d/specific_humidity"
    flip_vertical: bool = True
    model_a_half_var: str = "a_half"
    model_b_half_var: str = "b_half"

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Adds `output_name`, (batch, level, time, lat, lon) in m^2 / s^2."""
        surface = self.filled(tree, self.surface_pressure_var, context, PASCAL)
        fields = (
            self.ground_of(tree, surface, context),
            surface,
            self.filled(tree, self.temperature_var, context, KELVIN),
            self.filled(tree, self.specific_humidity_var, context, 0.0),
        )
        with errors_of(*self.level_origin):
            heights = vertical.geopotential(
                *fields, self._coefficients, flip_vertical=self.flip_vertical
            )
        return base.with_fields(tree, self.key, {self.output_name: heights})

    def describe(self, units: base.Descriptions) -> base.Descriptions:
        return {self.output_name: GEOPOTENTIAL}


@base.postblock("pressure_interp_diagnostic")
class PressureInterp(_OfModelLevels):
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

    level_fields: ClassVar = (
        "level_info_file",
        "model_a_var",
        "model_b_var",
        "levels",
    )
    on_levels: ClassVar = ("temperature_var", "interp_variables")
    interfaces: ClassVar = False

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

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Adds one (batch, pressure, time, lat, lon) field for each variable."""
        a, b = self._coefficients
        down = slice(None, None, 1 if vertical.rises(a, b) else -1)

        def column(key: str, fill: float) -> Any:
            return self.filled(tree, key, context, fill)[:, down]

        surface = self.filled(tree, self.surface_pressure_var, context, PASCAL)
        state = vertical.ColumnState(
            column(self.temperature_var, KELVIN),
            column(self.geopotential_var, 0.0),
            surface,
            self.ground_of(tree, surface, context),
        )
        fields = [column(key, 0.0) for key in self.interp_variables]
        with errors_of(*self.level_origin):
            out = vertical.to_pressure_levels(
                fields,
                state,
                (a[down], b[down]),
                np.asarray(self.pressure_levels) * 100.0,
                temp_height=self.temp_height,
            )
        interpolated = dict(zip(self._names.values(), out, strict=True))
        return base.with_fields(tree, self.key, interpolated)

    @property
    def effects(self) -> base.Effects:
        levels = base.PRESSURE, self.pressure_levels
        return base.Effects(levels=dict.fromkeys(self._names.values(), levels))

    @property
    def _names(self) -> dict[str, str]:
        """Key of each variable -> key of it on pressure levels."""
        keys = (*self.interp_variables, self.temperature_var, self.geopotential_var)
        return {key: derived_key(key, self.output_suffix) for key in keys}

    def describe(self, units: base.Descriptions) -> base.Descriptions:
        """Returns the attributes of each variable, its long name with an addition."""
        defaults = {self.temperature_var: TEMPERATURE}
        defaults |= {self.geopotential_var: GEOPOTENTIAL}
        descriptions = {}
        for key, name in self._names.items():
            attributes = {**defaults.get(key, {}), **units.get(key, {})}
            descriptions[name] = _named(attributes, "pressure levels")
        return descriptions


def _named(attributes: Mapping[str, str], levels: str) -> dict[str, str]:
    """The attributes of a field on other levels: an addition to its long name."""
    if "long_name" not in attributes:
        return dict(attributes)
    return {**attributes, "long_name": f"{attributes['long_name']} on {levels}"}


def derived_key(var_key: str, suffix: str) -> str:
    """Returns the key of a variable on pressure levels."""
    source, _, dims, name = var_key.split("/")[:4]
    # ERA5/prognostic/3d/T to ERA5/derived_diagnostic/3d/T_PRES, for instance.
    return f"{source}/derived_diagnostic/{dims}/{name}{suffix}"


_AIR_PRESSURE = {"standard_name": "air_pressure", "units": "Pa"}


@base.postblock("full_state_pressure_interpolation")
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
        super().open()
        path, a = self.model_level_file, self.a_model_name
        levels = files.read_coefficients(path, a, self.b_model_name)
        numbers = files.level_numbers(path, a)
        half_levels = files.read_coefficients(path, self.a_half_name, self.b_half_name)
        positions = {
            int(number): k
            for k, number in enumerate(numbers or range(1, len(levels[0]) + 1))
        }
        missing = [level for level in self.levels or () if level not in positions]
        if missing:
            raise ValueError(
                f"{path} has levels {min(positions)} to {max(positions)}, but `levels` "
                f"asks for {missing}"
            )
        every = tuple(range(len(levels[0])))
        named = self.levels
        self._chosen = every if named is None else tuple(positions[k] for k in named)
        index = list(self._chosen)
        self._levels = self.P0 * levels[0][index], levels[1][index]
        self._half_levels = self.P0 * half_levels[0], half_levels[1]
        if not (vertical.rises(*self._levels) and vertical.rises(*self._half_levels)):
            raise ValueError(f"levels of {path} must be from the top down")
        self._numbers = numbers and tuple(numbers[k] for k in self._chosen)

    @property
    def level_files(self) -> tuple[base.LevelFile, ...]:
        keys = (self.temperature_var, self.q_var, *self.interp_fields)
        origin = f"{self.model_level_file}: {self.a_model_name}, {self.b_model_name}"
        return (base.LevelFile(origin, keys.__contains__, self._numbers),)

    def derived(self, name: str, dims: str = "3d") -> str:
        """Key of a field that the block makes, by its name."""
        source = self.temperature_var.split("/")[0]
        return f"{source}/derived_diagnostic/{dims}/{name}"

    @property
    def _interpolated(self) -> dict[str, tuple[str, base.OutputLevels, str]]:
        """Key of each interpolated field -> its variable, its levels, their name."""
        on_pressure = base.PRESSURE, self.pressure_levels
        kinds: list[tuple[str, str, base.OutputLevels, str]] = [
            (self.pres_ending, self.geopotential_var, on_pressure, "pressure levels")
        ]
        if self.height_levels is not None:
            on_heights = base.HEIGHT, self.height_levels
            kinds += [(self.height_ending, self.pressure_3d_var, on_heights, "heights")]
        return {
            derived_key(key, ending): (key, levels, text)
            for ending, more, levels, text in kinds
            for key in (*self.interp_fields, self.derived(more))
        }

    @property
    def effects(self) -> base.Effects:
        fields = self._interpolated.items()
        return base.Effects(levels={name: levels for name, (_, levels, _) in fields})

    @property
    def output_keys(self) -> tuple[str, ...]:
        """Keys of all fields that the block makes."""
        names = (self.geopotential_var, self.pressure_3d_var)
        sea_level = self.derived("mean_sea_level_pressure", "2d")
        return (*self.effects.levels, *map(self.derived, names), sea_level)

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Adds the fields of `effects`, and pressure, geopotential and MSLP."""
        # Differs from CREDIT: `P_HEIGHT` is computed (CREDIT writes zeros), and the
        # geopotential of levels that a file counts from 0 is that of these levels.
        surface = self.filled(tree, self.surface_pressure_var, context, PASCAL)
        ground = self.ground_of(tree, surface, context)
        temperature = self.filled(tree, self.temperature_var, context, KELVIN)
        self._check(self.temperature_var, temperature)
        pressure = arrays.hybrid_levels(self._levels, surface)
        half_a, half_b = self._half_levels
        full = 0.5 * (half_a[:-1] + half_a[1:]), 0.5 * (half_b[:-1] + half_b[1:])
        full_pressure = arrays.hybrid_levels(full, surface)

        def on_full_levels(key: str, fill: float = 0.0) -> Any:
            field = self.filled(tree, key, context, fill)
            self._check(key, field)
            return vertical.interpolate_columns(field, pressure, full_pressure)

        warm = on_full_levels(self.temperature_var, KELVIN)
        # Above the ground, so that heights near it do not cancel in float32.
        above = vertical.geopotential_of_ifs(
            0.0 * ground, surface, warm, on_full_levels(self.q_var), self._half_levels
        )
        heights = ground + above
        fields = {key: on_full_levels(key) for key in self.interp_fields}
        state = vertical.ColumnState(warm, heights, surface, ground)
        *others, on_pressure, pressure_heights = vertical.to_pressure_levels(
            list(fields.values()), state, full, np.asarray(self.pressure_levels) * 100.0
        )
        interpolated = dict(zip(fields, others, strict=True))
        if self.temperature_var in interpolated:
            interpolated[self.temperature_var] = on_pressure
        interpolated[self.derived(self.geopotential_var)] = pressure_heights
        derived = {
            derived_key(key, self.pres_ending): x for key, x in interpolated.items()
        }
        if self.height_levels:
            # From the lowest level upward, above the ground.
            fields[self.derived(self.pressure_3d_var)] = full_pressure
            points = arrays.by_level(self.height_levels, full_pressure)
            heights_above = (above / arrays.GRAVITY)[:, ::-1]
            derived |= {
                derived_key(key, self.height_ending): vertical.interpolate_linearly(
                    x[:, ::-1], heights_above, points
                )
                for key, x in fields.items()
            }
        lowest = temperature[:, -1:]
        sea_level = vertical.mean_sea_level_pressure(surface, lowest, ground)
        derived |= {
            self.derived(self.geopotential_var): heights[:, np.array(self._chosen)],
            self.derived(self.pressure_3d_var): pressure,
            self.derived("mean_sea_level_pressure", "2d"): sea_level,
        }
        return base.with_fields(tree, self.key, derived)

    def describe(self, units: base.Descriptions) -> base.Descriptions:
        """Returns the attributes of each field, its long name with an addition."""
        attributes_of: dict[str, Any] = {
            self.derived(self.geopotential_var): GEOPOTENTIAL,
            self.derived(self.pressure_3d_var): _AIR_PRESSURE,
            self.derived("mean_sea_level_pressure", "2d"): SEA_LEVEL_PRESSURE,
        }
        sources = {self.temperature_var: TEMPERATURE, **units, **attributes_of}
        for name, (key, _, text) in self._interpolated.items():
            attributes_of[name] = _named(sources.get(key, {}), text)
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
