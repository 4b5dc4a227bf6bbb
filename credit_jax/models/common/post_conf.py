"""`model.gen1_post_conf`: the corrections with which CREDIT's first generation trains.

gen1 corrects the output of a model inside of its forward pass; gen2's training ignores
the same section. `credit-jax config --to jax` converts gen1's `post_conf` to this
section, with the keys of gen1's `data` section that its blocks read.

`x` and `y` are input and output of the model, (batch, channel, time, lat, lon), which
may be normalized; the prognostic channels of `x` come first, in the order of `y`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import jax
import numpy as np
from jaxtyping import Float
from pydantic import Field, PositiveInt

from credit_jax.config import StrictModel
from credit_jax.config.base import Unavailable
from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.coordinates import (
    CoordinateValues,
    GridCoordinates,
    Kind,
    are_numbered_alike,
    indices_of,
)
from credit_jax.physics import conservation as physics
from credit_jax.physics.arrays import (
    SECONDS_PER_HOUR,
    by_level,
    fill_padding,
    namespace,
)
from credit_jax.physics.files import level_values, read_arrays, read_grid, read_surface

Names = tuple[str, ...]
# Of fluxes, J / m^2 in the step, and their signs as energy input of the air.
Gain: TypeAlias = Annotated[Names, 1.0]
Loss: TypeAlias = Annotated[Names, -1.0]
_INSIDE = {"activate_outside_model": Unavailable("use postblocks for that", (False,))}
_NO_DEMO = {"simple_demo": Unavailable("give the file of the grid", (False,))}

ChannelArray = Float[Any, "batch _ _ lat lon"]
# (channels) -> their fields before or after the step, in physical units.
ReadChannels: TypeAlias = Callable[[slice], Any]
Reads: TypeAlias = tuple[ReadChannels, ReadChannels]
# The corrected channels and their values in physical units.
Fixed: TypeAlias = tuple[slice, Any]
ChannelFixer: TypeAlias = Callable[[Reads, FieldContext | None], Fixed]


@dataclass(frozen=True, eq=False)
class ChannelUnits:
    """Physical = normalized * std + mean, for every channel of `y`."""

    mean: Float[np.ndarray, " channel"]  # 0 where channels are not normalized
    std: Float[np.ndarray, " channel"]  # 1 where channels are not normalized

    def physical(self, array: ChannelArray, channels: slice) -> ChannelArray:
        """The channels `channels` in physical units."""
        some = array[:, channels]
        mean, std = (by_level(x[channels], some) for x in (self.mean, self.std))
        return some * std + mean

    def normalized(self, values: ChannelArray, channels: slice) -> ChannelArray:
        """The inverse of `physical`."""
        mean, std = (by_level(x[channels], values) for x in (self.mean, self.std))
        return (values - mean) / std


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

    def bind(self, post: Gen1PostConf) -> ChannelFixer:
        """Returns the fixer of all channels from the first to the last limited one."""
        largest = self.tracer_thres_max or (None,) * len(self.tracer_name)
        pairs = zip(self.tracer_thres, largest, strict=True)
        limits = dict(zip(self.tracer_name, pairs, strict=True))
        channels = post.channels(self, "tracer_name")
        names = post.data.by_channel[channels]
        limited = [limits.get(name, (-np.inf, None)) for name in names]
        lows = [low for low, _ in limited]
        highs = [np.inf if high is None else high for _, high in limited]

        def fix(reads: Reads, _: FieldContext | None) -> Fixed:
            values = reads[1](channels)
            low, high = (by_level(x, values) for x in (lows, highs))
            xp = namespace(values)
            values = xp.where(values < low, low, values)
            return channels, xp.where(values > high, high, values)

        return fix


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

    def bind(self, post: Gen1PostConf, grid: physics.PhysicsGrid) -> ChannelFixer:
        """Returns the fixer of global means on a grid."""
        raise NotImplementedError

    def moisture(self, post: Gen1PostConf) -> tuple[slice, slice | None]:
        """Returns the channels of humidity and, on hybrid levels, of the pressure."""
        humidity = post.channels(self, "specific_total_water_name")
        if post.with_grid(self).grid_type == "pressure":
            return humidity, None
        return humidity, post.channel(self, "surface_pressure_name")


class MassConf(FixerConf):
    """`global_mass_fixer`.

    Attributes:
        fix_level_num: levels from the surface whose humidity is corrected, on pressure
            levels.
    """

    fix_level_num: int = 1

    def bind(self, post: Gen1PostConf, grid: physics.PhysicsGrid) -> ChannelFixer:
        """Returns the fixer of surface pressure, or of humidity on pressure levels."""
        humidity, pressure = self.moisture(post)

        def fix(reads: Reads, context: FieldContext | None) -> Fixed:
            if pressure is None:
                start, end = (read(humidity) for read in reads)
                return humidity, physics.fix_dry_mass_by_humidity(
                    grid, start, end, self.fix_level_num, context
                )
            start, end = (_moisture(read, humidity, pressure) for read in reads)
            return pressure, physics.fix_dry_mass(grid, start, end, context)

        return fix


class WaterConf(FixerConf):
    """`global_water_fixer`.

    Attributes:
        precipitation_name, evaporation_name: variables, in m accumulated over the step.
    """

    precipitation_name: Names = ()
    evaporation_name: Names = ()

    def bind(self, post: Gen1PostConf, grid: physics.PhysicsGrid) -> ChannelFixer:
        """Returns the fixer of precipitation."""
        keys = ("precipitation_name", "evaporation_name")
        rain, evaporation = (post.channel(self, key) for key in keys)
        moisture = self.moisture(post)

        def fix(reads: Reads, context: FieldContext | None) -> Fixed:
            start, end = (_moisture(read, *moisture) for read in reads)
            rate, loss = (reads[1](channel) for channel in (rain, evaporation))
            return rain, physics.fix_precipitation(
                grid, start, end, rate, loss, post.data.seconds, context
            )

        return fix


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

    def bind(self, post: Gen1PostConf, grid: physics.PhysicsGrid) -> ChannelFixer:
        """Returns the fixer of temperature."""
        keys = ("air_temperature_name", "specific_total_water_name")
        keys = (*keys, "u_wind_name", "v_wind_name")
        state = [post.channels(self, key) for key in keys]
        fluxes = [
            (slice(channel, channel + 1), sign)
            for key, field in type(self).model_fields.items()
            for sign in field.metadata
            for channel in post.indices(self, key)
        ]
        path = post.data.save_loc_physics or ""
        ground = read_surface(path, self.surface_geopotential_name[0])
        pressure, seconds = self.moisture(post)[1], post.data.seconds

        def fix(reads: Reads, context: FieldContext | None) -> Fixed:
            start, end = (
                physics.Air(
                    *(read(channels) for channels in state),
                    pressure=_pressure(read, pressure, state[2]),
                )
                for read in reads
            )
            net = sum(sign * reads[1](channel) for channel, sign in fluxes)
            return state[0], physics.fix_energy(
                grid, start, end, ground, net / seconds, seconds, context
            )

        return fix


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

    TOA_net_radiation_flux_name: Gain = ()
    surface_net_radiation_flux_name: Loss = ()
    surface_energy_flux_name: Loss = ()


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

    TOA_down_solar_name: Gain = ()
    TOA_up_solar_name: Loss = ()
    TOA_up_OLR_name: Loss = ()
    surf_down_solar_name: Loss = ()
    surf_up_solar_name: Gain = ()
    surf_down_LW_name: Loss = ()
    surf_up_LW_name: Gain = ()
    surf_SH_name: Gain = ()
    surf_LH_name: Gain = ()
    grid_type: Literal["sigma", "pressure"] = "sigma"
    midpoint: bool = True


class InactiveConf(StrictModel):
    """Section of a block that is not available and must not be active.

    Attributes:
        activate: False.
    """

    activate: Literal[False] = False


def _pressure(read: ReadChannels, channel: slice | None, channels: slice) -> Any:
    """Surface pressure; zeros on pressure levels, where it is not used."""
    if channel is not None:
        return read(channel)
    some = read(channels)[:, :1]
    return namespace(some).zeros_like(some)


def _moisture(
    read: ReadChannels, humidity: slice, pressure: slice | None
) -> physics.Moisture:
    return physics.Moisture(read(humidity), _pressure(read, pressure, humidity))


@dataclass(frozen=True, eq=False)
class ChannelFixers:
    """The active fixers of a section, for a model's output."""

    # Each with the units of the channels; None if they are physical.
    fixers: Sequence[tuple[ChannelFixer, ChannelUnits | None]]
    grids: Sequence[physics.PhysicsGrid]  # of the fixers of global means

    def __call__(
        self, x: ChannelArray, y: ChannelArray, context: FieldContext | None = None
    ) -> ChannelArray:
        """Returns the corrected output of a model with the input x."""
        # The last time of x is the state before the step, through which no gradient
        # flows.
        previous = x[:, :, -1:]
        if isinstance(x, jax.Array):
            previous = jax.lax.stop_gradient(previous)
        for fixer, units in self.fixers:

            def read(
                array: ChannelArray, channels: slice, units: Any = units
            ) -> ChannelArray:
                some = array[:, channels]
                some = units.physical(array, channels) if units else some
                return fill_padding(some, 1.0, context)

            reads = partial(read, previous), partial(read, y)
            channels, values = fixer(reads, context)
            if units is not None:
                values = units.normalized(values, channels)
            # Differs from CREDIT: channels that no fixer corrects are not converted to
            # physical units and back, which would only round them.
            parts = [y[:, : channels.start], values, y[:, channels.stop :]]
            y = namespace(y).concatenate(parts, axis=1)
        return y


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

    @property
    def seconds(self) -> int:
        """Length of a step."""
        return self.lead_time_periods * SECONDS_PER_HOUR

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


class Gen1PostConf(StrictModel):
    """gen1's `post_conf`: fixers at the end of the forward pass, in this order of keys.

    Attributes:
        activate: whether any fixer is applied.
        tracer_fixer: limits the values of variables.
        skebs: stochastic kinetic energy backscatter; not available.
        global_mass_fixer, global_water_fixer: close the budgets of dry air and water.
        global_energy_fixer, global_energy_fixer_updown: close the budget of energy.
        data: the keys of gen1's `data` section that the blocks read.
    """

    ignored: ClassVar = {"grid": "only skebs reads it"}

    activate: bool = True
    tracer_fixer: TracerConf = Field(default_factory=TracerConf)
    skebs: InactiveConf = Field(default_factory=InactiveConf)
    global_mass_fixer: MassConf = Field(default_factory=MassConf)
    global_water_fixer: WaterConf = Field(default_factory=WaterConf)
    global_energy_fixer: EnergyConf = Field(default_factory=EnergyConf)
    global_energy_fixer_updown: UpDownConf = Field(default_factory=UpDownConf)
    data: PostConfData = Field(default=...)

    @property
    def blocks(self) -> list[TracerConf | FixerConf]:
        """The active blocks, in CREDIT's order."""
        blocks = (getattr(self, name) for name in type(self).model_fields)
        kinds = TracerConf | FixerConf
        return [b for b in blocks if isinstance(b, kinds) and b.activate]

    @property
    def on_grid(self) -> bool:
        """Whether an active block reads `data.save_loc_physics`."""
        return any(isinstance(block, FixerConf) for block in self.blocks)

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
        return self.bind(self.data.units())

    def bind(self, units: ChannelUnits) -> ChannelFixers:
        """Returns the active blocks with their grids, for channels of these units."""
        fixers, grids = [], []
        for block in self.blocks if self.activate else ():
            if isinstance(block, TracerConf):
                fixer = block.bind(self)
            else:
                conf = self.with_grid(block)
                grid = read_grid(
                    self.data.save_loc_physics or "",
                    conf.lon_lat_level_name,
                    hybrid=conf.grid_type == "sigma",
                    midpoint=conf.midpoint,
                )
                grids.append(grid)
                fixer = block.bind(self, grid)
            fixers.append((fixer, units if block.denorm else None))
        return ChannelFixers(fixers, grids)

    def with_grid(self, conf: FixerConf) -> FixerConf:
        """Returns the section with the grid: that of the mass fixer, if it has one."""
        mass = self.global_mass_fixer
        return mass if mass.lon_lat_level_name else conf

    def indices(self, conf: StrictModel, key: str) -> list[int]:
        """Returns the channels of the variables that a key names."""
        names, variables = getattr(conf, key), self.data.by_channel
        channels = [i for i, name in enumerate(variables) if name in names]
        missing = [name for name in names if name not in variables]
        if missing or not channels:
            available = ", ".join(dict.fromkeys(variables))
            raise ValueError(
                f"model.post_conf: {key} is {list(names)}; expected variables of the "
                f"output: {available}"
            )
        return channels

    def channels(self, conf: StrictModel, key: str) -> slice:
        """Returns the channels from the first to the last that a key names."""
        indices = self.indices(conf, key)
        return slice(indices[0], indices[-1] + 1)

    def channel(self, conf: StrictModel, key: str) -> slice:
        """Returns the first channel that a key names."""
        first = self.indices(conf, key)[0]
        return slice(first, first + 1)

    def check_grid(self, grid: tuple[int, int]) -> None:
        """Checks the grid of `data.save_loc_physics` against that of the model."""
        for of_fixer in self.fixers.grids:
            shape = of_fixer.weights.shape
            if shape != grid:
                shapes = [" x ".join(map(str, s)) for s in (shape, grid)]
                raise ValueError(
                    "model.gen1_post_conf.data.save_loc_physics has a grid of "
                    f"{shapes[0]} points, but the model {shapes[1]}; give its file"
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
                    f"order than {list(jax_path or ())[:4]} ... of {data.where}: sort"
                )

    def problems(self, num_channels: int, frames: int) -> list[str]:
        """Returns errors of the section for a model, one line each."""
        origin, problems = "model.gen1_post_conf", []
        sums = " + ".join(f"{n} {count}" for n, count in self.data.by_variable.items())
        if len(self.data.by_channel) != num_channels:
            problems.append(
                f"{origin}.data has {len(self.data.by_channel)} channels ({sums}), the "
                f"model's output {num_channels}: name only its variables, in order"
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
