"""The conservation fixers: `tracer_fixer`, and those of dry mass, water and energy.

They read and write `y_processed` in physical units, so they run after the inverse
scaling, and before the scaling that rebuilds y_pred. The state before the step is
`x_physical`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import PrivateAttr

from credit_jax.config.components import FilePath
from credit_jax.named_fields.coordinates import GridCoordinates, on_grid
from credit_jax.physics import conservation as physics
from credit_jax.physics.arrays import SECONDS_PER_HOUR, clip, fill_padding
from credit_jax.physics.files import read_grid, read_surface
from credit_jax.transforms import base
from credit_jax.transforms.base import FieldTree, StepContext, Transform, TreeSchema

# Key of a variable -> its field before or after a step, (batch, level, 1, lat, lon).
Reader: TypeAlias = Callable[[str], Any]


@base.postblock("tracer_fixer")
class TracerFixer(Transform):
    """Limits tracers to a range, such as to what is not negative.

    Attributes:
        tracer_vars: keys of the variables to limit.
        tracer_thres: smallest value, one for all variables or one for each.
        tracer_thres_max: largest value, one for all or one for each; null is no limit.
    """

    tracer_vars: tuple[str, ...]
    tracer_thres: float | tuple[float, ...]
    tracer_thres_max: float | tuple[float | None, ...] | None = None

    def conflicts(self) -> Iterator[str]:
        for name in ("tracer_thres", "tracer_thres_max"):
            values, count = getattr(self, name), len(self.tracer_vars)
            if isinstance(values, tuple) and len(values) != count:
                yield (
                    f"{name} has {len(values)} values for {count} variables; give one "
                    "for all or one each"
                )

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        count = len(self.tracer_vars)
        limits = (
            values if isinstance(values, tuple) else (values,) * count
            for values in (self.tracer_thres, self.tracer_thres_max)
        )
        fixed = {
            key: clip(base.get_field(tree, base.OUTPUT, key), low, high)
            for key, low, high in zip(self.tracer_vars, *limits, strict=True)
        }
        return base.with_fields(tree, base.OUTPUT, fixed)


class _OnLevels(Transform):
    """A global fixer, with integrals over levels.

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
    needs: ClassVar = ("x_physical",)

    save_loc_physics: FilePath
    lon_lat_level_name: tuple[str, ...]
    grid_type: Literal["sigma", "pressure"] = "sigma"
    midpoint: bool = False
    input_source_key: str = "x_physical"

    # Levels and areas of global integrals.
    _grid: physics.PhysicsGrid = PrivateAttr()

    def open(self) -> None:
        self._grid = read_grid(
            self.save_loc_physics,
            self.lon_lat_level_name,
            hybrid=self.grid_type == "sigma",
            midpoint=self.midpoint,
        )

    def at(self, schema: TreeSchema, grid: GridCoordinates) -> _OnLevels:
        """Returns the block with its grid in the order of the data."""
        # Its levels are those of the predicted variables.
        levels = {g.levels for g in schema.get("target", ()) if g.levels is not None}
        level_values = levels.pop() if len(levels) == 1 else None
        axes = GridCoordinates(grid.latitude, grid.longitude, level_values, grid.where)
        return self.with_values(_grid=self._grid.at(axes))

    @property
    def level_files(self) -> tuple[base.LevelFile, ...]:
        """See `Transform`; none for levels that are matched by their pressure."""
        if self._grid.axes.levels is not None:
            return ()
        named = self.model_dump(include={"T_var", "q_var", "U_var", "V_var"})
        levels = self._grid.levels
        keys = frozenset(named.values())
        return (base.LevelFile(levels.origin, keys.__contains__, levels.numbers),)

    def readers(self, tree: FieldTree, context: StepContext) -> tuple[Reader, Reader]:
        """Readers of fields at the last time before, and the first after the step."""

        def reader(part: str, time: slice) -> Reader:
            # Padding rows get a value for which integrals are finite.
            return lambda key: fill_padding(
                base.get_field(tree, part, key)[:, :, time], 1.0, context
            )

        previous = reader(self.input_source_key, slice(-1, None))
        return previous, reader(base.OUTPUT, slice(0, 1))


class _OfMoisture(_OnLevels):
    """A fixer that integrates humidity.

    Attributes:
        q_var: key of specific total water, kg / kg.
        sp_var: key of surface pressure, Pa.
    """

    reads: ClassVar = ("q_var", "sp_var")

    q_var: str
    sp_var: str

    def moisture(self, read: Reader) -> physics.Moisture:
        """Humidity and surface pressure of the state that `read` reads."""
        return physics.Moisture(read(self.q_var), read(self.sp_var))


@base.postblock("global_mass_fixer")
class MassFixer(_OfMoisture):
    """Keeps the mass of dry air, by surface pressure `sp_var` of hybrid levels."""

    def conflicts(self) -> Iterator[str]:
        if self.grid_type != "sigma":
            yield "grid_type: expected sigma: the mass is corrected by sp_var"

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Replaces surface pressure."""
        previous, after = map(self.moisture, self.readers(tree, context))
        fixed = physics.fix_dry_mass(self._grid, previous, after, context)
        return base.with_fields(tree, base.OUTPUT, {self.sp_var: fixed})


@base.postblock("global_water_fixer")
class WaterFixer(_OfMoisture):
    """Closes the budget of water, by precipitation.

    Attributes:
        precip_var: key of precipitation, m in the step, which is corrected.
        evapor_var: key of evaporation, m in the step, with CREDIT's sign.
        lead_time_periods: length of the step in hours.
    """

    precip_var: str
    evapor_var: str
    lead_time_periods: int

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Replaces precipitation."""
        previous, after = self.readers(tree, context)
        fixed = physics.fix_precipitation(
            self._grid,
            self.moisture(previous),
            self.moisture(after),
            after(self.precip_var),
            after(self.evapor_var),
            self.lead_time_periods * SECONDS_PER_HOUR,
            context,
        )
        return base.with_fields(tree, base.OUTPUT, {self.precip_var: fixed})


class _EnergyFixer(_OnLevels):
    """Corrects temperature to close the global energy budget.

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

    reads: ClassVar = ("T_var", "q_var", "U_var", "V_var", "sp_var")

    T_var: str
    q_var: str
    U_var: str
    V_var: str
    sp_var: str | None = None
    surface_geopotential_name: str | tuple[str, ...]
    surf_sh_var: str
    surf_lh_var: str
    lead_time_periods: int

    # (readers before and after the step) -> net energy flux into the air, W / m^2
    flux: ClassVar[Callable[..., Any]]
    # (lat, lon) m^2 / s^2
    _surface_geopotential: np.ndarray = PrivateAttr()

    def conflicts(self) -> Iterator[str]:
        if self.grid_type == "sigma" and self.sp_var is None:
            yield "sp_var: missing; hybrid levels (sigma) need it"

    def open(self) -> None:
        super().open()
        name = self.surface_geopotential_name
        name = name if isinstance(name, str) else name[0]
        self._surface_geopotential = read_surface(self.save_loc_physics, name)

    def at(self, schema: TreeSchema, grid: GridCoordinates) -> _OnLevels:
        """Returns the block with its grid and surface in the order of the data."""
        surface = on_grid(self._surface_geopotential, self._grid.axes, grid)
        located = super().at(schema, grid)
        return located.with_values(_surface_geopotential=surface)

    def __call__(self, tree: FieldTree, context: StepContext = None) -> dict[str, Any]:
        """Replaces temperature."""
        previous, after = self.readers(tree, context)
        fixed = physics.fix_energy(
            self._grid,
            self._air(previous),
            self._air(after),
            self._surface_geopotential,
            self.flux(previous, after),
            self.lead_time_periods * SECONDS_PER_HOUR,
            context,
        )
        return base.with_fields(tree, base.OUTPUT, {self.T_var: fixed})

    def _air(self, read: Reader) -> physics.Air:
        """The state; levels of constant pressure pass over the surface pressure."""
        keys = self.T_var, self.q_var, self.U_var, self.V_var, self.sp_var
        fields = [read(key) for key in keys if key is not None]
        pressure = [] if self.sp_var is not None else [fields[0][:, :1]]
        return physics.Air(*fields, *pressure)


@base.postblock("global_energy_fixer", "global_energy_fixer_updown")
class EnergyFixer(_EnergyFixer):
    """Closes the budget of energy by temperature; fluxes up and down are separate.

    Attributes:
        toa_down_solar_input_var: key of the solar flux into the top, W / m^2, in the
            state before the step.
        toa_up_solar_var, toa_up_olr_var: keys of the fluxes out of the top, W / m^2.
        surf_down_solar_var, surf_up_solar_var, surf_down_lw_var, surf_up_lw_var: keys
            of radiation at the surface, J / m^2 in the step.
    """

    reads: ClassVar = (*_EnergyFixer.reads, "toa_down_solar_input_var")

    toa_down_solar_input_var: str
    toa_up_solar_var: str
    toa_up_olr_var: str
    surf_down_solar_var: str
    surf_up_solar_var: str
    surf_down_lw_var: str
    surf_up_lw_var: str

    def flux(self, previous: Reader, after: Reader) -> Any:
        top = previous(self.toa_down_solar_input_var) - after(self.toa_up_solar_var)
        top = top - after(self.toa_up_olr_var)
        down = after(self.surf_down_solar_var) + after(self.surf_down_lw_var)
        up = after(self.surf_up_solar_var) + after(self.surf_up_lw_var)
        surface = down - up + after(self.surf_sh_var) + after(self.surf_lh_var)
        return top - surface / (self.lead_time_periods * SECONDS_PER_HOUR)


@base.postblock("global_energy_fixer_net")
class NetEnergyFixer(_EnergyFixer):
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

    def flux(self, previous: Reader, after: Reader) -> Any:
        top = after(self.toa_net_solar_var) + after(self.toa_net_thermal_var)
        surface = after(self.surf_net_solar_var) + after(self.surf_net_thermal_var)
        surface = surface + after(self.surf_sh_var) + after(self.surf_lh_var)
        net = top - surface
        seconds = self.lead_time_periods * SECONDS_PER_HOUR
        return net if self.flux_units == "W m-2" else net / seconds
