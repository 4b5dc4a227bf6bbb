"""The conservation fixers: `tracer_fixer`, and those of dry mass, water and energy.

They read and write `y_processed` in physical units, so they run after the inverse
scaling, and before the scaling that rebuilds y_pred. The state before the step is
`x_physical`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import field_validator, model_validator

from credit_jax.config import StrictModel
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.coordinates import GridCoordinates, places_of, take_places
from credit_jax.physics import conservation as physics
from credit_jax.physics.arrays import SECONDS_PER_HOUR, clip
from credit_jax.physics.files import read_grid, read_surface
from credit_jax.physics.rows import fill_padding
from credit_jax.transforms.base import FieldTree, LevelFile, Transform, TreeSchema
from credit_jax.transforms.named import OUTPUT, get_field, with_fields

# Key of a variable -> its field before or after a step, (batch, level, 1, lat, lon).
Reader: TypeAlias = Callable[[str], Any]


class TracerFixerArgs(StrictModel):
    """Limits tracers to a range, such as to what is not negative.

    Attributes:
        tracer_vars: keys of the variables to limit.
        tracer_thres: smallest value, one for all variables or one for each.
        tracer_thres_max: largest value, one for all or one for each; null is no limit.
    """

    tracer_vars: tuple[str, ...]
    tracer_thres: float | tuple[float, ...]
    tracer_thres_max: float | tuple[float | None, ...] | None = None


class PhysicsArgs(StrictModel):
    """Arguments that the global fixers share.

    Attributes:
        save_loc_physics: NetCDF file or Zarr store with the grid.
        lon_lat_level_name: names of its longitude, latitude, and coefficients a (Pa)
            and b of hybrid levels, or pressure (Pa).
        grid_type: whether levels are hybrid ("sigma") or of constant pressure
            ("pressure").
        midpoint: whether fields are means of the layers between these levels; else
            they are values at the levels, and integrals are trapezoidal.
        input_source_key: entry with the state before the step.
    """

    ignored: ClassVar = {
        "fix_level_num": "CREDIT accepts it, and reads it in gen1 only"
    }

    save_loc_physics: str
    lon_lat_level_name: tuple[str, ...]
    grid_type: Literal["sigma", "pressure"] = "sigma"
    midpoint: bool = False
    input_source_key: str = "x_physical"


class MoistureArgs(PhysicsArgs):
    """Arguments that the fixers of mass and water share.

    Attributes:
        q_var: key of specific total water, kg / kg.
        sp_var: key of surface pressure, Pa.
    """

    q_var: str
    sp_var: str


class MassFixerArgs(MoistureArgs):
    """Keeps the mass of dry air, by surface pressure `sp_var` of hybrid levels."""

    @field_validator("grid_type")
    @classmethod
    def _hybrid(cls, value: str) -> str:
        if value != "sigma":
            raise ValueError("expected sigma: the mass is corrected by sp_var")
        return value


class WaterFixerArgs(MoistureArgs):
    """Closes the budget of water, by precipitation.

    Attributes:
        precip_var: key of precipitation, m in the step, which is corrected.
        evapor_var: key of evaporation, m in the step, with CREDIT's sign.
        lead_time_periods: length of the step in hours.
    """

    precip_var: str
    evapor_var: str
    lead_time_periods: int


class AirArgs(PhysicsArgs):
    """Arguments that the fixers of energy share.

    Attributes:
        T_var: key of temperature, K, which is corrected.
        q_var, U_var, V_var: keys of specific total water, kg / kg, and wind, m / s.
        sp_var: key of surface pressure, Pa; levels of constant pressure need none.
        surface_geopotential_name: variable of `save_loc_physics`, m^2 / s^2; of a list,
            the first one.
        surf_sh_var, surf_lh_var: keys of sensible and latent heat, J / m^2 in the step,
            positive downward.
        lead_time_periods: length of the step in hours.
    """

    T_var: str
    q_var: str
    U_var: str
    V_var: str
    sp_var: str | None = None
    surface_geopotential_name: str | tuple[str, ...]
    surf_sh_var: str
    surf_lh_var: str
    lead_time_periods: int

    @model_validator(mode="after")
    def _has_pressure(self) -> AirArgs:
        if self.grid_type == "sigma" and self.sp_var is None:
            raise ValueError("sp_var: missing; hybrid levels (sigma) need it")
        return self

    @property
    def air(self) -> tuple[str, ...]:
        """Keys of temperature, humidity, wind and, if there is one, pressure."""
        keys = (self.T_var, self.q_var, self.U_var, self.V_var)
        return keys if self.sp_var is None else (*keys, self.sp_var)


class EnergyFixerArgs(AirArgs):
    """Closes the budget of energy by temperature; fluxes up and down are separate.

    Attributes:
        toa_down_solar_input_var: key of the solar flux into the top, W / m^2, in the
            state before the step.
        toa_up_solar_var, toa_up_olr_var: keys of the fluxes out of the top, W / m^2.
        surf_down_solar_var, surf_up_solar_var, surf_down_lw_var, surf_up_lw_var: keys
            of radiation at the surface, J / m^2 in the step.
    """

    toa_down_solar_input_var: str
    toa_up_solar_var: str
    toa_up_olr_var: str
    surf_down_solar_var: str
    surf_up_solar_var: str
    surf_down_lw_var: str
    surf_up_lw_var: str


class NetEnergyFixerArgs(AirArgs):
    """Closes the budget of energy by temperature; fluxes are net, positive downward.

    Attributes:
        toa_net_solar_var, toa_net_thermal_var: keys of radiation at the top.
        surf_net_solar_var, surf_net_thermal_var: keys of radiation at the surface.
        flux_units: unit of all fluxes, those of heat included: "J m-2" in the step, or
            "W m-2".
    """

    toa_net_solar_var: str
    toa_net_thermal_var: str
    surf_net_solar_var: str
    surf_net_thermal_var: str
    flux_units: Literal["J m-2", "W m-2"] = "J m-2"


@dataclasses.dataclass(frozen=True, eq=False)
class _OnLevels(Transform):
    """What the fixers with integrals over levels share.

    Attributes:
        args: the arguments of the fixer.
        grid: levels and areas of global integrals.
    """

    args: PhysicsArgs
    grid: physics.PhysicsGrid

    def at(self, schema: TreeSchema, grid: GridCoordinates) -> _OnLevels:
        """Returns the block with its grid in the order of the data.

        Its levels are those of the predicted variables.
        """
        levels = {g.levels for g in schema.get("target", ()) if g.levels is not None}
        known = levels.pop() if len(levels) == 1 else None
        axes = GridCoordinates(grid.latitude, grid.longitude, known, grid.where)
        return dataclasses.replace(self, grid=self.grid.at(axes))

    @property
    def level_files(self) -> tuple[LevelFile, ...]:
        """See `Transform`; none for levels that are matched by their pressure."""
        if self.grid.axes.levels is not None:
            return ()
        named = self.args.model_dump(include={"T_var", "q_var", "U_var", "V_var"})
        levels = self.grid.levels
        keys = frozenset(named.values())
        return (LevelFile(levels.origin, keys.__contains__, levels.numbers),)


@dataclasses.dataclass(frozen=True)
class TracerFixer(Transform):
    """Clips variables of the output.

    Attributes:
        limits: key -> smallest and largest value.
    """

    limits: dict[str, tuple[float | None, float | None]]

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Replaces the fields by clipped ones."""
        fixed = {
            key: clip(get_field(tree, OUTPUT, key), *bounds)
            for key, bounds in self.limits.items()
        }
        return with_fields(tree, OUTPUT, fixed)


@dataclasses.dataclass(frozen=True, eq=False)
class _OfMoisture(_OnLevels):
    """What the fixers of mass and water share: both integrate humidity."""

    args: MoistureArgs

    @property
    def state_keys(self) -> tuple[str, ...]:
        """See `Transform`."""
        return (self.args.q_var, self.args.sp_var)

    def moisture(self, read: Reader) -> physics.Moisture:
        """Humidity and surface pressure of the state that `read` reads."""
        return physics.Moisture(*map(read, self.state_keys))


@dataclasses.dataclass(frozen=True, eq=False)
class MassFixer(_OfMoisture):
    """Corrects surface pressure to conserve the global mass of dry air."""

    args: MassFixerArgs

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Replaces surface pressure."""
        before, after = map(self.moisture, _readers(tree, self.args, context))
        fixed = physics.fix_dry_mass(self.grid, before, after, context)
        return with_fields(tree, OUTPUT, {self.args.sp_var: fixed})


@dataclasses.dataclass(frozen=True, eq=False)
class WaterFixer(_OfMoisture):
    """Corrects precipitation to close the global water budget."""

    args: WaterFixerArgs

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Replaces precipitation."""
        args = self.args
        before, after = _readers(tree, args, context)
        fixed = physics.fix_precipitation(
            self.grid,
            self.moisture(before),
            self.moisture(after),
            after(args.precip_var),
            after(args.evapor_var),
            args.lead_time_periods * SECONDS_PER_HOUR,
            context,
        )
        return with_fields(tree, OUTPUT, {args.precip_var: fixed})


@dataclasses.dataclass(frozen=True, eq=False)
class EnergyFixer(_OnLevels):
    """Corrects temperature to close the global energy budget.

    Attributes:
        surface_geopotential: (lat, lon) m^2 / s^2.
    """

    args: EnergyFixerArgs | NetEnergyFixerArgs
    surface_geopotential: np.ndarray

    def at(self, schema: TreeSchema, grid: GridCoordinates) -> EnergyFixer:
        """Returns the block with its grid and surface in the order of the data."""
        axes = self.grid.axes
        where = axes.where, grid.where
        rows = places_of(grid.latitude, axes.latitude, "latitude", *where)
        columns = places_of(grid.longitude, axes.longitude, "longitude", *where)
        surface = take_places(self.surface_geopotential, rows, 0)
        surface = take_places(surface, columns, 1)
        located = super().at(schema, grid).grid
        return dataclasses.replace(self, grid=located, surface_geopotential=surface)

    @property
    def state_keys(self) -> tuple[str, ...]:
        """See `Transform`."""
        args = self.args
        if isinstance(args, NetEnergyFixerArgs):
            return args.air
        return (*args.air, args.toa_down_solar_input_var)

    def __call__(
        self, tree: FieldTree, context: FieldContext | None = None
    ) -> dict[str, Any]:
        """Replaces temperature."""
        args = self.args
        before, after = _readers(tree, args, context)
        seconds = args.lead_time_periods * SECONDS_PER_HOUR
        if isinstance(args, NetEnergyFixerArgs):
            flux = _net_flux(args, after, seconds)
        else:
            flux = _flux(args, before, after, seconds)
        fixed = physics.fix_energy(
            self.grid,
            _air(args, before),
            _air(args, after),
            self.surface_geopotential,
            flux,
            seconds,
            context,
        )
        return with_fields(tree, OUTPUT, {args.T_var: fixed})


def _air(args: AirArgs, read: Reader) -> physics.Air:
    """The state; levels of constant pressure pass over the surface pressure."""
    fields = [read(key) for key in args.air]
    pressure = [] if args.sp_var is not None else [fields[0][:, :1]]
    return physics.Air(*fields, *pressure)


def _flux(args: EnergyFixerArgs, before: Reader, after: Reader, seconds: float) -> Any:
    """Net energy flux into the air, W / m^2, of upward and downward fluxes."""
    top = before(args.toa_down_solar_input_var) - after(args.toa_up_solar_var)
    top = top - after(args.toa_up_olr_var)
    down = after(args.surf_down_solar_var) + after(args.surf_down_lw_var)
    up = after(args.surf_up_solar_var) + after(args.surf_up_lw_var)
    surface = down - up + after(args.surf_sh_var) + after(args.surf_lh_var)
    return top - surface / seconds


def _net_flux(args: NetEnergyFixerArgs, after: Reader, seconds: float) -> Any:
    """Net energy flux into the air, W / m^2, of net fluxes."""
    top = after(args.toa_net_solar_var) + after(args.toa_net_thermal_var)
    surface = after(args.surf_net_solar_var) + after(args.surf_net_thermal_var)
    surface = surface + after(args.surf_sh_var) + after(args.surf_lh_var)
    net = top - surface
    return net if args.flux_units == "W m-2" else net / seconds


def build_tracer_fixer(args: TracerFixerArgs) -> TracerFixer:
    """Builds the block.

    Raises:
        ValueError: the thresholds are not one for all variables or one for each.
    """
    low = _for_each(args.tracer_thres, args, "tracer_thres")
    high = _for_each(args.tracer_thres_max, args, "tracer_thres_max")
    limits = zip(low, high, strict=True)
    return TracerFixer(dict(zip(args.tracer_vars, limits, strict=True)))


def build_mass_fixer(args: MassFixerArgs) -> MassFixer:
    """Builds the block; reads its grid."""
    return MassFixer(args, _grid(args))


def build_water_fixer(args: WaterFixerArgs) -> WaterFixer:
    """Builds the block; reads its grid."""
    return WaterFixer(args, _grid(args))


def build_energy_fixer(args: EnergyFixerArgs | NetEnergyFixerArgs) -> EnergyFixer:
    """Builds the block; reads its grid and the surface geopotential."""
    name = args.surface_geopotential_name
    name = name if isinstance(name, str) else name[0]
    return EnergyFixer(args, _grid(args), read_surface(args.save_loc_physics, name))


def _grid(args: PhysicsArgs) -> physics.PhysicsGrid:
    return read_grid(
        args.save_loc_physics,
        args.lon_lat_level_name,
        hybrid=args.grid_type == "sigma",
        midpoint=args.midpoint,
    )


def _readers(
    tree: FieldTree, args: PhysicsArgs, context: FieldContext | None
) -> tuple[Reader, Reader]:
    """Readers of fields at the last time before, and the first time after the step."""

    def reader(part: str, time: slice) -> Reader:
        # Padding rows get a value for which integrals are finite.
        return lambda key: fill_padding(
            get_field(tree, part, key)[:, :, time], 1.0, context
        )

    return reader(args.input_source_key, slice(-1, None)), reader(OUTPUT, slice(0, 1))


def _for_each(values: Any, args: TracerFixerArgs, name: str) -> tuple[Any, ...]:
    count = len(args.tracer_vars)
    if not isinstance(values, tuple):
        return (values,) * count
    if len(values) != count:
        raise ValueError(
            f"tracer_fixer: {name} has {len(values)} values for {count} variables; "
            "give one for all or one each"
        )
    return values
