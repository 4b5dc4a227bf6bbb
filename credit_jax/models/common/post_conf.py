"""`model.post_conf` of CREDIT's first generation: fixers at a model's end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from credit_jax.config.base import StrictModel, Unavailable
from credit_jax.physics.channels import (
    ChannelFixer,
    ChannelFixers,
    ChannelUnits,
    DryMass,
    Energy,
    Precipitation,
    TracerLimits,
)
from credit_jax.physics.conservation import PhysicsGrid
from credit_jax.physics.constants import SECONDS_PER_HOUR
from credit_jax.physics.files import read_grid, read_surface

Names = tuple[str, ...]
_INSIDE = {"activate_outside_model": Unavailable("use postblocks for that", (False,))}
_NO_DEMO = {"simple_demo": Unavailable("give the file of the grid", (False,))}


class TracerConf(StrictModel):
    """`tracer_fixer`.

    Attributes:
        activate: whether it runs.
        denorm: thresholds are in physical units.
        tracer_name: variables of the output.
        tracer_thres: smallest value of each.
        tracer_thres_max: largest value of each; null sets none.
    """

    activate: bool = False
    denorm: bool = True
    tracer_name: Names = ()
    tracer_thres: tuple[float, ...] = ()
    tracer_thres_max: tuple[float, ...] | None = None


class FixerConf(StrictModel):
    """What the global fixers share.

    Attributes:
        activate: whether it runs.
        denorm: the model's fields are normalized.
        midpoint: fields are means of layers. Water and energy take this, grid_type and
            lon_lat_level_name from `global_mass_fixer` if it has them, as in CREDIT.
        grid_type: levels are hybrid ("sigma") or of constant pressure ("pressure").
        lon_lat_level_name: names in `data.save_loc_physics` of longitude, latitude,
            and a and b of hybrid levels, or pressure.
        surface_pressure_name: on hybrid levels.
        specific_total_water_name: variables.
    """

    unavailable: ClassVar = {**_INSIDE, **_NO_DEMO}

    activate: bool = False
    denorm: bool = True
    midpoint: bool = False
    grid_type: Literal["sigma", "pressure"] = "pressure"
    lon_lat_level_name: Names = ()
    surface_pressure_name: Names = ()
    specific_total_water_name: Names = ()


class MassConf(FixerConf):
    """`global_mass_fixer`.

    Attributes:
        fix_level_num: levels from the surface whose humidity is corrected, on pressure
            levels.
    """

    fix_level_num: int = 1


class WaterConf(FixerConf):
    """`global_water_fixer`.

    Attributes:
        precipitation_name, evaporation_name: m in the step.
    """

    precipitation_name: Names = ()
    evaporation_name: Names = ()


class AirConf(FixerConf):
    """What both energy fixers share.

    Attributes:
        air_temperature_name, u_wind_name, v_wind_name: variables of the air.
        surface_geopotential_name: variable of `data.save_loc_physics`.
    """

    air_temperature_name: Names = ()
    u_wind_name: Names = ()
    v_wind_name: Names = ()
    surface_geopotential_name: Names = ()


class EnergyConf(AirConf):
    """`global_energy_fixer`, of net fluxes, J / m^2 in the step.

    Attributes:
        TOA_net_radiation_flux_name: two, into the top.
        surface_net_radiation_flux_name: two, into the surface.
        surface_energy_flux_name: sensible and latent heat, into the surface.
    """

    TOA_net_radiation_flux_name: Names = ()
    surface_net_radiation_flux_name: Names = ()
    surface_energy_flux_name: Names = ()


class UpDownConf(AirConf):
    """`global_energy_fixer_updown`, of fluxes up and down, J / m^2 in the step.

    Attributes:
        TOA_down_solar_name, TOA_up_solar_name, TOA_up_OLR_name: at the top.
        surf_down_solar_name, surf_up_solar_name, surf_down_LW_name, surf_up_LW_name:
            at the surface.
        surf_SH_name, surf_LH_name: sensible and latent heat, into the air.
    """

    TOA_down_solar_name: Names = ()
    TOA_up_solar_name: Names = ()
    TOA_up_OLR_name: Names = ()
    surf_down_solar_name: Names = ()
    surf_up_solar_name: Names = ()
    surf_down_LW_name: Names = ()
    surf_up_LW_name: Names = ()
    surf_SH_name: Names = ()
    surf_LH_name: Names = ()
    grid_type: Literal["sigma", "pressure"] = "sigma"
    midpoint: bool = True


class InactiveConf(StrictModel):
    """A block that must not be active.

    Attributes:
        activate: false.
    """

    activate: Literal[False] = False


class PostConf(StrictModel):
    """`model.post_conf`: they run in the order of these keys.

    Attributes:
        activate: whether any runs.
        tracer_fixer: limits of variables.
        global_mass_fixer, global_water_fixer: budgets of dry air and of water.
        global_energy_fixer, global_energy_fixer_updown: budget of energy.
        skebs: random backscatter of kinetic energy; not available.
    """

    ignored: ClassVar = {"grid": "only skebs reads it"}

    activate: bool = False
    tracer_fixer: TracerConf = Field(default_factory=TracerConf)
    skebs: InactiveConf = Field(default_factory=InactiveConf)
    global_mass_fixer: MassConf = Field(default_factory=MassConf)
    global_water_fixer: WaterConf = Field(default_factory=WaterConf)
    global_energy_fixer: EnergyConf = Field(default_factory=EnergyConf)
    global_energy_fixer_updown: UpDownConf = Field(default_factory=UpDownConf)


# Fluxes of the energy fixers and their signs as energy into the air.
_NET = (
    ("TOA_net_radiation_flux_name", 1.0),
    ("surface_net_radiation_flux_name", -1.0),
    ("surface_energy_flux_name", -1.0),
)
_UP_DOWN = (
    ("TOA_down_solar_name", 1.0),
    ("TOA_up_solar_name", -1.0),
    ("TOA_up_OLR_name", -1.0),
    ("surf_down_solar_name", -1.0),
    ("surf_up_solar_name", 1.0),
    ("surf_down_LW_name", -1.0),
    ("surf_up_LW_name", 1.0),
    ("surf_SH_name", 1.0),
    ("surf_LH_name", 1.0),
)


def build_channel_fixers(
    conf: PostConf,
    variables: Sequence[str],
    units: ChannelUnits,
    *,
    save_loc_physics: str,
    lead_time_periods: int,
) -> ChannelFixers:
    """The active fixers, in CREDIT's order.

    Args:
        conf: `model.post_conf`.
        variables: name of the variable of each channel of the model's output.
        units: of the channels.
        save_loc_physics: file with the grid.
        lead_time_periods: hours of a step.

    Raises:
        ValueError: a fixer names no variable of the output, or the file does not fit.
        OSError: the file cannot be read.
    """
    build = _Builder(conf, variables, save_loc_physics, lead_time_periods)
    makers = {
        "tracer_fixer": build.tracers,
        "global_mass_fixer": build.mass,
        "global_water_fixer": build.water,
        "global_energy_fixer": lambda own: build.energy(own, _NET),
        "global_energy_fixer_updown": lambda own: build.energy(own, _UP_DOWN),
    }
    fixers: list[tuple[ChannelFixer, ChannelUnits | None]] = []
    for name, make in makers.items():
        own: Any = getattr(conf, name)
        if conf.activate and own.activate:
            fixers.append((make(own), units if own.denorm else None))
    return ChannelFixers(fixers)


class _Builder:
    """Fixers of one config."""

    def __init__(
        self, conf: PostConf, variables: Sequence[str], path: str, hours: int
    ) -> None:
        self.conf, self.variables, self.path = conf, list(variables), path
        self.seconds = hours * SECONDS_PER_HOUR

    def tracers(self, own: TracerConf) -> TracerLimits:
        largest = own.tracer_thres_max or (None,) * len(own.tracer_name)
        by_name = dict(
            zip(
                own.tracer_name,
                zip(own.tracer_thres, largest, strict=True),
                strict=True,
            )
        )
        self._channels(own, "tracer_name")
        return TracerLimits(
            {i: by_name[v] for i, v in enumerate(self.variables) if v in by_name}
        )

    def mass(self, own: MassConf) -> DryMass:
        return DryMass(self._grid(own), *self._moisture(own), own.fix_level_num)

    def water(self, own: WaterConf) -> Precipitation:
        names = ("precipitation_name", "evaporation_name")
        rain, evaporation = (self._channels(own, name)[0] for name in names)
        moisture = self._moisture(own)
        return Precipitation(
            self._grid(own), *moisture, rain, evaporation, self.seconds
        )

    def energy(self, own: AirConf, signs: Sequence[tuple[str, float]]) -> Energy:
        names = ("air_temperature_name", "specific_total_water_name")
        names = (*names, "u_wind_name", "v_wind_name")
        temperature, humidity, u, v = (self._range(own, name) for name in names)
        fluxes = [
            (channel, sign)
            for name, sign in signs
            for channel in self._channels(own, name)
        ]
        return Energy(
            self._grid(own),
            read_surface(self.path, own.surface_geopotential_name[0]),
            temperature,
            humidity,
            u,
            v,
            self._moisture(own)[1],
            fluxes,
            self.seconds,
        )

    def _moisture(self, own: FixerConf) -> tuple[slice, int | None]:
        humidity = self._range(own, "specific_total_water_name")
        if self._of_grid(own).grid_type == "pressure":
            return humidity, None
        return humidity, self._channels(own, "surface_pressure_name")[0]

    def _of_grid(self, own: FixerConf) -> FixerConf:
        """The section with the grid: that of the mass fixer, if it has one."""
        mass = self.conf.global_mass_fixer
        return mass if mass.lon_lat_level_name else own

    def _grid(self, own: FixerConf) -> PhysicsGrid:
        grid = self._of_grid(own)
        return read_grid(
            self.path,
            grid.lon_lat_level_name,
            hybrid=grid.grid_type == "sigma",
            midpoint=grid.midpoint,
        )

    def _channels(self, own: StrictModel, key: str) -> list[int]:
        """Channels of the variables that a key names."""
        names = getattr(own, key)
        found = [i for i, name in enumerate(self.variables) if name in names]
        missing = [name for name in names if name not in self.variables]
        if missing or not found:
            there = ", ".join(dict.fromkeys(self.variables))
            raise ValueError(
                f"model.post_conf: {key} is {list(names)}; expected variables of the "
                f"output: {there}"
            )
        return found

    def _range(self, own: StrictModel, key: str) -> slice:
        """Channels of a variable on levels."""
        channels = self._channels(own, key)
        return slice(channels[0], channels[-1] + 1)
