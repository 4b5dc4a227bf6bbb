"""Diagnostics: geopotential, sea level pressure, fields on pressure levels.

They read `y_processed` and the static surface geopotential of `ic_raw`, in physical
units, and add fields to `y_processed`.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import numpy as np
from jaxtyping import Float
from pydantic import PrivateAttr

from credit_jax.config.components import FilePath, PackagedFile
from credit_jax.io.errors import errors_of
from credit_jax.named_fields.coordinates import CoordinateValues
from credit_jax.physics.arrays import fill_padding, local_rows, namespace
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
from credit_jax.transforms.base import (
    PRESSURE,
    Descriptions,
    FieldTree,
    LevelFile,
    OutputLevels,
    StepContext,
    Transform,
    get_field,
    postblock,
    variable_of,
    with_fields,
)

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
            name = variable_of(self.surface_geopotential_var)
            self._ground = read_surface(self.surface_geopotential_file, name)

    def filled(
        self, tree: FieldTree, key: str, context: StepContext, fill: float
    ) -> Any:
        """A field of `key` whose padding rows have a value that is safe in formulas."""
        return fill_padding(get_field(tree, self.key, key), fill, context)

    def surface_of(self, tree: FieldTree, context: StepContext) -> Any:
        """Surface pressure, Pa, of the entry that the block extends."""
        return self.filled(tree, self.surface_pressure_var, context, PASCAL)

    def ground_of(self, tree: FieldTree, surface: Any, context: StepContext) -> Any:
        """Surface geopotential at the first time, repeated for ensemble members.

        Args:
            tree: has static fields.
            surface: a field without levels, which gives rows and dtype.
            context: context of the step, or None.
        """
        if self._ground is not None:
            rows = local_rows(self._ground, surface, context)
            return namespace(surface).broadcast_to(rows, surface[:, :, :1].shape)
        field = get_field(tree, self.static_source_key, self.surface_geopotential_var)
        field = fill_padding(field, 0.0, context)[:, :, :1]
        return field if context is None else context.repeat_members(field)


class _OfEra5(OverGround):
    surface_pressure_var: str = "ARCO_ERA5/prognostic/2d/surface_pressure"
    surface_geopotential_var: str = "ARCO_ERA5/static/2d/geopotential_at_surface"


class _OfLevels(_OfEra5):
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

    # Coefficients of the levels of the data, a in Pa, and b.
    _coefficients: Coefficients = PrivateAttr()
    # Numbers of these levels in their file; None if it has none.
    _numbers: CoordinateValues | None = PrivateAttr()


@postblock("mslp_diagnostic")
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
        surface = self.surface_of(tree, context)
        pressure = mean_sea_level_pressure(
            surface,
            self.filled(tree, self.temperature_var, context, KELVIN),
            self.ground_of(tree, surface, context),
        )
        return with_fields(tree, self.key, {self.output_name: pressure})

    def describe(self, units: Descriptions) -> Descriptions:
        """Returns the attributes of the result."""
        return {self.output_name: SEA_LEVEL_PRESSURE}


@postblock("geopotential_diagnostic")
class Geopotential(_OfLevels):
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

    def open(self) -> None:
        """Reads the coefficients of the interfaces."""
        super().open()
        path, a = self.level_info_file, self.model_a_half_var
        self._coefficients = read_coefficients(
            path, a, self.model_b_half_var, self.levels, interfaces=True
        )
        self._numbers = level_numbers(path, a, self.levels, between=True)

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        keys = (self.temperature_var, self.specific_humidity_var)
        names = f"{self.model_a_half_var}, {self.model_b_half_var}"
        origin = f"{self.level_info_file}: {names}"
        return (LevelFile(origin, keys.__contains__, self._numbers),)

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Adds `output_name`, (batch, level, time, lat, lon) in m^2 / s^2."""
        surface = self.surface_of(tree, context)
        fields = (
            self.ground_of(tree, surface, context),
            surface,
            self.filled(tree, self.temperature_var, context, KELVIN),
            self.filled(tree, self.specific_humidity_var, context, 0.0),
        )
        names = self.model_a_half_var, self.model_b_half_var
        with errors_of(self.level_info_file, *names):
            heights = geopotential(
                *fields, self._coefficients, flip_vertical=self.flip_vertical
            )
        return with_fields(tree, self.key, {self.output_name: heights})

    def describe(self, units: Descriptions) -> Descriptions:
        """Returns the attributes of the result."""
        return {self.output_name: GEOPOTENTIAL}


@postblock("pressure_interp_diagnostic")
class PressureInterp(_OfLevels):
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

    def open(self) -> None:
        """Reads the coefficients at the centers of the levels."""
        super().open()
        path, a = self.level_info_file, self.model_a_var
        self._coefficients = read_coefficients(path, a, self.model_b_var, self.levels)
        self._numbers = level_numbers(path, a, self.levels)

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        keys = (self.temperature_var, *self.interp_variables)
        origin = f"{self.level_info_file}: {self.model_a_var}, {self.model_b_var}"
        return (LevelFile(origin, keys.__contains__, self._numbers),)

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Adds one (batch, pressure, time, lat, lon) field for each variable."""
        a, b = self._coefficients
        down = slice(None, None, 1 if rises(a, b) else -1)

        def column(key: str, fill: float) -> Any:
            return self.filled(tree, key, context, fill)[:, down]

        surface = self.surface_of(tree, context)
        state = ColumnState(
            column(self.temperature_var, KELVIN),
            column(self.geopotential_var, 0.0),
            surface,
            self.ground_of(tree, surface, context),
        )
        fields = [column(key, 0.0) for key in self.interp_variables]
        with errors_of(self.level_info_file, self.model_a_var, self.model_b_var):
            out = to_pressure_levels(
                fields,
                state,
                (a[down], b[down]),
                np.asarray(self.pressure_levels) * 100.0,
                temp_height=self.temp_height,
            )
        interpolated = dict(zip(self._names.values(), out, strict=True))
        return with_fields(tree, self.key, interpolated)

    @property
    def output_levels(self) -> dict[str, OutputLevels]:
        return dict.fromkeys(self._names.values(), (PRESSURE, self.pressure_levels))

    @property
    def _names(self) -> dict[str, str]:
        """Key of each variable -> key of it on pressure levels."""
        keys = (*self.interp_variables, self.temperature_var, self.geopotential_var)
        return {key: derived_key(key, self.output_suffix) for key in keys}

    def describe(self, units: Descriptions) -> Descriptions:
        """Returns the attributes of each variable, its long name with an addition."""
        defaults = {self.temperature_var: TEMPERATURE}
        defaults |= {self.geopotential_var: GEOPOTENTIAL}
        descriptions = {}
        for key, name in self._names.items():
            attributes = {**defaults.get(key, {}), **units.get(key, {})}
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
