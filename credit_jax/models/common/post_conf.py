"""`model.gen1_post_conf`: the corrections with which CREDIT's first generation trains.

gen1 corrects the output of a model inside of its forward pass; gen2's training ignores
the same section. `credit-jax config --to jax` converts gen1's `post_conf` to this
section, with the keys of gen1's `data` section that its blocks read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PositiveInt

from credit_jax.config import StrictModel
from credit_jax.config.base import Unavailable
from credit_jax.named_fields.coordinates import (
    CoordinateValues,
    GridCoordinates,
    Kind,
    are_numbered_alike,
    indices_of,
)
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
from credit_jax.physics.files import level_values, read_arrays, read_grid, read_surface

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
    """Builds the active fixers, in CREDIT's order."""
    build = _Builder(conf, variables, save_loc_physics, lead_time_periods)
    makers = {
        "tracer_fixer": build.tracers,
        "global_mass_fixer": lambda fixer_conf: DryMass(
            build.grid(fixer_conf),
            *build.moisture(fixer_conf),
            fixer_conf.fix_level_num,
        ),
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

    def water(self, conf: WaterConf) -> Precipitation:
        names = ("precipitation_name", "evaporation_name")
        rain, evaporation = (self._channels(conf, name)[0] for name in names)
        moisture = self.moisture(conf)
        return Precipitation(
            self.grid(conf), *moisture, rain, evaporation, self.seconds
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
            self.grid(conf),
            read_surface(self.path, conf.surface_geopotential_name[0]),
            temperature,
            humidity,
            u,
            v,
            self.moisture(conf)[1],
            fluxes,
            self.seconds,
        )

    def moisture(self, conf: FixerConf) -> tuple[slice, int | None]:
        humidity = self._range(conf, "specific_total_water_name")
        if self._of_grid(conf).grid_type == "pressure":
            return humidity, None
        return humidity, self._channels(conf, "surface_pressure_name")[0]

    def _of_grid(self, conf: FixerConf) -> FixerConf:
        """Returns the section with the grid: that of the mass fixer, if it has one."""
        mass = self.conf.global_mass_fixer
        return mass if mass.lon_lat_level_name else conf

    def grid(self, conf: FixerConf) -> PhysicsGrid:
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
            available = ", ".join(dict.fromkeys(self.variables))
            raise ValueError(
                f"model.post_conf: {key} is {list(names)}; expected variables of the "
                f"output: {available}"
            )
        return channels

    def _range(self, conf: StrictModel, key: str) -> slice:
        """Returns the channels of a variable on levels."""
        channels = self._channels(conf, key)
        return slice(channels[0], channels[-1] + 1)


# Blocks that read the file with the grid.
_ON_GRID = (
    "global_mass_fixer",
    "global_water_fixer",
    "global_energy_fixer",
    "global_energy_fixer_updown",
)


class PostConfData(StrictModel):
    """The keys of gen1's `data` section that the blocks read.

    Attributes:
        variables: names of the output variables on levels, in channel order.
        surface_variables, diagnostic_variables: names of the output variables without
            levels, in channel order.
        levels: number of levels of each of `variables`.
        lead_time_periods: hours of a step.
        save_loc_physics: file with the grid; not needed by tracer_fixer.
        mean_path, std_path: files with the mean and standard deviation of every
            variable (`scaler_type: std_new`); None for data that are normalized on
            disk, which the blocks use unchanged.
    """

    variables: Names
    surface_variables: Names = ()
    diagnostic_variables: Names = ()
    levels: PositiveInt
    lead_time_periods: PositiveInt
    save_loc_physics: str | None = None
    mean_path: str | None = None
    std_path: str | None = None

    @property
    def by_variable(self) -> dict[str, int]:
        """Number of channels of each variable, in channel order."""
        flat = (*self.surface_variables, *self.diagnostic_variables)
        return dict.fromkeys(self.variables, self.levels) | dict.fromkeys(flat, 1)

    @property
    def by_channel(self) -> tuple[str, ...]:
        """Variable name of every channel."""
        pairs = self.by_variable.items()
        return tuple(name for name, count in pairs for _ in range(count))

    def units(self) -> ChannelUnits:
        """Returns mean and deviation of every channel; 0 and 1 without files."""
        if self.mean_path is None or self.std_path is None:
            count = len(self.by_channel)
            return ChannelUnits(np.zeros(count), np.ones(count))
        both = []
        for path in (self.mean_path, self.std_path):
            arrays, parts = read_arrays(path, list(self.by_variable)), []
            pairs = zip(self.by_variable.items(), arrays, strict=True)
            for (name, count), array in pairs:
                if array.size < count:
                    raise ValueError(
                        f"{path}: {name} has {array.size} values, expected {count}, "
                        "one a level of gen1_post_conf.data.levels"
                    )
                parts.append(array.reshape(-1)[:count])
            both.append(np.concatenate(parts))
        return ChannelUnits(*both)


class Gen1PostConf(PostConf):
    """gen1's `post_conf`, applied at the end of the forward pass.

    Attributes:
        activate: whether it is applied.
        data: the keys of gen1's `data` section that the blocks read.
    """

    activate: bool = True
    data: PostConfData = Field(default=...)

    @property
    def on_grid(self) -> bool:
        """Whether an active block reads `data.save_loc_physics`."""
        return any(getattr(self, name).activate for name in _ON_GRID)

    @property
    def files(self) -> dict[str, str]:
        """Paths of the files that the active blocks read, by key."""
        if not self.activate:
            return {}
        keys = ["save_loc_physics"] if self.on_grid else []
        keys += ["mean_path", "std_path"]
        named = {key: getattr(self.data, key) for key in keys}
        return {f"data.{key}": path for key, path in named.items() if path}

    @cached_property
    def fixers(self) -> ChannelFixers:
        """The active blocks; their files are read on first use."""
        data = self.data
        return build_channel_fixers(
            self,
            data.by_channel,
            data.units(),
            save_loc_physics=data.save_loc_physics or "",
            lead_time_periods=data.lead_time_periods,
        )

    def check_grid(self, grid: tuple[int, int]) -> None:
        """Checks the grid of `data.save_loc_physics` against that of the model."""
        for of_fixer in self.fixers.grids:
            shape = of_fixer.weights.shape
            if shape != grid:
                shapes = [" x ".join(map(str, s)) for s in (shape, grid)]
                raise ValueError(
                    f"model.gen1_post_conf.data.save_loc_physics: "
                    f"{self.data.save_loc_physics} has a grid of {shapes[0]} points, "
                    f"the model has {shapes[1]}; give the file of the model's grid"
                )

    def check_coordinates(self, data: GridCoordinates) -> None:
        """Checks that the files of the active blocks have the data's coordinates."""
        conf, origin = self.data, "model.gen1_post_conf.data"
        pairs: list[
            tuple[str, Kind, CoordinateValues | None, CoordinateValues | None]
        ] = []
        file = f"{origin}.save_loc_physics: {conf.save_loc_physics}"
        for grid in self.fixers.grids:
            axes, numbers = grid.axes, grid.levels.numbers
            pairs.append((file, "latitude", data.latitude, axes.latitude))
            pairs.append((file, "longitude", data.longitude, axes.longitude))
            pairs.append((file, "level", data.levels, axes.levels))
            if are_numbered_alike(data.levels, numbers):
                pairs.append((file, "level", data.levels, numbers))
        for key, path in (("mean_path", conf.mean_path), ("std_path", conf.std_path)):
            for name in conf.variables if path else ():
                values = level_values(str(path), name)
                values = None if values is None else values[: conf.levels]
                pairs.append((f"{origin}.{key}: {path}", "level", data.levels, values))
        for file, kind, jax_path, other in pairs:
            if indices_of(jax_path, other, kind, file, data.where) is not None:
                raise ValueError(
                    f"{file}: its {kind}s {list(other or ())[:4]} ... are in another "
                    f"order than {list(jax_path or ())[:4]} ... of {data.where}; bring "
                    "the file to that order"
                )

    def problems(self, num_channels: int, frames: int) -> list[str]:
        """Returns errors of the section for a model, one line each."""
        origin, problems = "model.gen1_post_conf", []
        sums = " + ".join(f"{n} {count}" for n, count in self.data.by_variable.items())
        if len(self.data.by_channel) != num_channels:
            problems.append(
                f"{origin}.data: its variables have {len(self.data.by_channel)} "
                f"channels ({sums}), the model's output has {num_channels}; name all "
                "variables of the output, in channel order"
            )
        if self.on_grid and self.data.save_loc_physics is None:
            problems.append(
                f"{origin}.data.save_loc_physics: missing; the global fixers read the "
                "grid from this file"
            )
        if frames > 1:
            problems.append(
                f"{origin}: output_frames is {frames}; the fixers take one output time"
            )
        if (self.data.mean_path is None) != (self.data.std_path is None):
            problems.append(
                f"{origin}.data: needs both mean_path and std_path, or neither"
            )
        return problems
