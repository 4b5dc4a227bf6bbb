"""`model.post_conf` of CREDIT's first generation: fixers of a model's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from credit_jax.config import StrictModel
from credit_jax.config.base import Unavailable
from credit_jax.physics.arrays import SECONDS_PER_HOUR
from credit_jax.physics.channel_fixers import (
    ChannelFixer,
    ChannelFixers,
    ChannelUnits,
    DryMass,
    Energy,
    Precipitation,
    TracerLimits,
)
from credit_jax.physics.conservation import PhysicsGrid
from credit_jax.physics.files import read_grid, read_surface

Names = tuple[str, ...]
_INSIDE = {"activate_outside_model": Unavailable("use postblocks for that", (False,))}
_NO_DEMO = {"simple_demo": Unavailable("give the file of the grid", (False,))}


class TracerConf(StrictModel):
    """`tracer_fixer`, which limits the values of variables.

    Attributes:
        activate: whether it is applied.
        denorm: whether the thresholds are in physical units.
        tracer_name: names of output variables.
        tracer_thres: lower limit of each variable.
        tracer_thres_max: upper limit of each variable; None for no upper limits.
    """

    activate: bool = False
    denorm: bool = True
    tracer_name: Names = ()
    tracer_thres: tuple[float, ...] = ()
    tracer_thres_max: tuple[float, ...] | None = None


class FixerConf(StrictModel):
    """Keys shared by the global fixers.

    The fixers of water and energy use midpoint, grid_type and lon_lat_level_name of
    `global_mass_fixer` if that has lon_lat_level_name, as in CREDIT.

    Attributes:
        activate: whether it is applied.
        denorm: whether the fields of the model are normalized.
        midpoint: whether fields are means over layers, not values on levels.
        grid_type: "sigma" for hybrid levels, "pressure" for levels of constant
            pressure.
        lon_lat_level_name: names in `data.save_loc_physics` of longitude, latitude,
            and a and b of hybrid levels, or pressure.
        surface_pressure_name: variable of surface pressure, for hybrid levels.
        specific_total_water_name: variable of specific total water.
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
        precipitation_name, evaporation_name: variables, in m accumulated over the step.
    """

    precipitation_name: Names = ()
    evaporation_name: Names = ()


class AirConf(FixerConf):
    """Keys shared by both energy fixers.

    Attributes:
        air_temperature_name, u_wind_name, v_wind_name: variables on levels.
        surface_geopotential_name: variable in `data.save_loc_physics`.
    """

    air_temperature_name: Names = ()
    u_wind_name: Names = ()
    v_wind_name: Names = ()
    surface_geopotential_name: Names = ()


class EnergyConf(AirConf):
    """`global_energy_fixer`, with net fluxes in J / m^2 accumulated over the step.

    Attributes:
        TOA_net_radiation_flux_name: variables of net radiation at the top of the
            atmosphere, positive downward.
        surface_net_radiation_flux_name: variables of net radiation at the surface,
            positive downward.
        surface_energy_flux_name: variables of sensible and latent heat flux, positive
            downward.
    """

    TOA_net_radiation_flux_name: Names = ()
    surface_net_radiation_flux_name: Names = ()
    surface_energy_flux_name: Names = ()


class UpDownConf(AirConf):
    """`global_energy_fixer_updown`, with separate upward and downward fluxes.

    All fluxes are in J / m^2 accumulated over the step.

    Attributes:
        TOA_down_solar_name, TOA_up_solar_name, TOA_up_OLR_name: variables of radiation
            at the top of the atmosphere.
        surf_down_solar_name, surf_up_solar_name, surf_down_LW_name, surf_up_LW_name:
            variables of radiation at the surface.
        surf_SH_name, surf_LH_name: variables of sensible and latent heat flux, positive
            upward.
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
    """Section of a block that is not available and must not be active.

    Attributes:
        activate: False.
    """

    activate: Literal[False] = False


class PostConf(StrictModel):
    """`model.post_conf`: fixers, applied in the order of these keys.

    Attributes:
        activate: whether any fixer is applied.
        tracer_fixer: limits the values of variables.
        skebs: stochastic kinetic energy backscatter; not available.
        global_mass_fixer, global_water_fixer: close the budgets of dry air and water.
        global_energy_fixer, global_energy_fixer_updown: close the budget of energy.
    """

    ignored: ClassVar = {"grid": "only skebs reads it"}

    activate: bool = False
    tracer_fixer: TracerConf = Field(default_factory=TracerConf)
    skebs: InactiveConf = Field(default_factory=InactiveConf)
    global_mass_fixer: MassConf = Field(default_factory=MassConf)
    global_water_fixer: WaterConf = Field(default_factory=WaterConf)
    global_energy_fixer: EnergyConf = Field(default_factory=EnergyConf)
    global_energy_fixer_updown: UpDownConf = Field(default_factory=UpDownConf)


# Fluxes of the energy fixers, and their signs as energy input of the atmosphere.
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
    """Builds the active fixers, in CREDIT's order.

    Args:
        conf: `model.post_conf`.
        variables: variable name of each channel of the model's output.
        units: mean and standard deviation of the channels.
        save_loc_physics: file with the grid.
        lead_time_periods: hours of a step.

    Raises:
        ValueError: a fixer names a variable that the output lacks, or the file does not
            fit.
        OSError: the file cannot be read.
    """
    build = _Builder(conf, variables, save_loc_physics, lead_time_periods)
    makers = {
        "tracer_fixer": build.tracers,
        "global_mass_fixer": build.mass,
        "global_water_fixer": build.water,
        "global_energy_fixer": lambda fixer_conf: build.energy(fixer_conf, _NET),
        "global_energy_fixer_updown": lambda fixer_conf: build.energy(
            fixer_conf, _UP_DOWN
        ),
    }
    fixers: list[tuple[ChannelFixer, ChannelUnits | None]] = []
    for name, make in makers.items():
        fixer_conf: Any = getattr(conf, name)
        if conf.activate and fixer_conf.activate:
            fixers.append((make(fixer_conf), units if fixer_conf.denorm else None))
    return ChannelFixers(fixers)


class _Builder:
    """Builds the fixers of one config."""

    def __init__(
        self, conf: PostConf, variables: Sequence[str], path: str, hours: int
    ) -> None:
        self.conf, self.variables, self.path = conf, list(variables), path
        self.seconds = hours * SECONDS_PER_HOUR

    def tracers(self, conf: TracerConf) -> TracerLimits:
        largest = conf.tracer_thres_max or (None,) * len(conf.tracer_name)
        by_name = dict(
            zip(
                conf.tracer_name,
                zip(conf.tracer_thres, largest, strict=True),
                strict=True,
            )
        )
        self._channels(conf, "tracer_name")
        return TracerLimits(
            {i: by_name[v] for i, v in enumerate(self.variables) if v in by_name}
        )

    def mass(self, conf: MassConf) -> DryMass:
        return DryMass(self._grid(conf), *self._moisture(conf), conf.fix_level_num)

    def water(self, conf: WaterConf) -> Precipitation:
        names = ("precipitation_name", "evaporation_name")
        rain, evaporation = (self._channels(conf, name)[0] for name in names)
        moisture = self._moisture(conf)
        return Precipitation(
            self._grid(conf), *moisture, rain, evaporation, self.seconds
        )

    def energy(self, conf: AirConf, signs: Sequence[tuple[str, float]]) -> Energy:
        names = ("air_temperature_name", "specific_total_water_name")
        names = (*names, "u_wind_name", "v_wind_name")
        temperature, humidity, u, v = (self._range(conf, name) for name in names)
        fluxes = [
            (channel, sign)
            for name, sign in signs
            for channel in self._channels(conf, name)
        ]
        return Energy(
            self._grid(conf),
            read_surface(self.path, conf.surface_geopotential_name[0]),
            temperature,
            humidity,
            u,
            v,
            self._moisture(conf)[1],
            fluxes,
            self.seconds,
        )

    def _moisture(self, conf: FixerConf) -> tuple[slice, int | None]:
        humidity = self._range(conf, "specific_total_water_name")
        if self._of_grid(conf).grid_type == "pressure":
            return humidity, None
        return humidity, self._channels(conf, "surface_pressure_name")[0]

    def _of_grid(self, conf: FixerConf) -> FixerConf:
        """Returns the section with the grid: that of the mass fixer, if it has one."""
        mass = self.conf.global_mass_fixer
        return mass if mass.lon_lat_level_name else conf

    def _grid(self, conf: FixerConf) -> PhysicsGrid:
        grid = self._of_grid(conf)
        return read_grid(
            self.path,
            grid.lon_lat_level_name,
            hybrid=grid.grid_type == "sigma",
            midpoint=grid.midpoint,
        )

    def _channels(self, conf: StrictModel, key: str) -> list[int]:
        """Returns the channels of the variables that a key names."""
        names = getattr(conf, key)
        channels = [i for i, name in enumerate(self.variables) if name in names]
        missing = [name for name in names if name not in self.variables]
        if missing or not channels:
            known = ", ".join(dict.fromkeys(self.variables))
            raise ValueError(
                f"model.post_conf: {key} is {list(names)}; expected variables of the "
                f"output: {known}"
            )
        return channels

    def _range(self, conf: StrictModel, key: str) -> slice:
        """Returns the channels of a variable on levels."""
        channels = self._channels(conf, key)
        return slice(channels[0], channels[-1] + 1)
