"""Conservation fixers on channels, as CREDIT's gen1 models apply them to their output.

`x` and `y` are input and output of the model, (batch, channel, time, lat, lon), which
may be normalized; the prognostic channels of `x` come first, in the order of `y`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from credit_jax.named_fields import FieldContext
from credit_jax.physics import conservation as physics
from credit_jax.physics.arrays import by_level, fill_padding, namespace

# (batch, channel, time, lat, lon).
ChannelArray = Float[Any, "batch _ _ lat lon"]
# (channels) -> their fields before or after the step, in physical units.
ReadChannels = Callable[[slice], Any]


@dataclass(frozen=True, eq=False)
class ChannelUnits:
    """Physical = normalized * std + mean, for every channel of `y`.

    Attributes:
        mean, std: (channel,); 0 and 1 where channels are not normalized.
    """

    mean: Float[np.ndarray, " channel"]
    std: Float[np.ndarray, " channel"]

    def physical(self, array: ChannelArray, channels: slice) -> ChannelArray:
        """The channels `channels` in physical units."""
        some = array[:, channels]
        return some * by_level(self.std[channels], some) + by_level(
            self.mean[channels], some
        )

    def normalized(self, values: ChannelArray, channels: slice) -> ChannelArray:
        """The inverse of `physical`."""
        mean, std = (
            by_level(self.mean[channels], values),
            by_level(self.std[channels], values),
        )
        return (values - mean) / std


# (reader before the step, reader after it, context) -> the corrected channels and their
# values in physical units.
ChannelFixer = Callable[
    [ReadChannels, ReadChannels, FieldContext | None], tuple[slice, Any]
]


@dataclass(frozen=True)
class TracerLimits:
    """Clips single channels to a range.

    Attributes:
        limits: channel -> smallest and largest value, in physical units; None is no
            limit.
    """

    limits: Mapping[int, tuple[float, float | None]]

    def __call__(
        self, previous: ReadChannels, after: ReadChannels, context: FieldContext | None
    ) -> tuple[slice, Any]:
        """Returns all channels from the first to the last limited one."""
        channels = slice(min(self.limits), max(self.limits) + 1)
        values = after(channels)
        low, high = np.full((2, channels.stop - channels.start), np.inf)
        low = -low
        for channel, (smallest, largest) in self.limits.items():
            low[channel - channels.start] = smallest
            if largest is not None:
                high[channel - channels.start] = largest
        xp, (low, high) = namespace(values), (by_level(x, values) for x in (low, high))
        values = xp.where(values < low, low, values)
        return channels, xp.where(values > high, high, values)


@dataclass(frozen=True, eq=False)
class DryMass:
    """Conserves the global mass of dry air.

    Attributes:
        grid: areas and levels.
        humidity: channels of specific total water, kg / kg.
        pressure: channel of surface pressure, Pa; None on pressure levels.
        num_fixed: number of levels, counted from the surface, whose humidity is
            corrected on pressure levels.
    """

    grid: physics.PhysicsGrid
    humidity: slice
    pressure: int | None
    num_fixed: int

    def __call__(
        self, previous: ReadChannels, after: ReadChannels, context: FieldContext | None
    ) -> tuple[slice, Any]:
        """Returns the corrected surface pressure, or humidity on pressure levels."""
        if self.pressure is None:
            humidity = previous(self.humidity), after(self.humidity)
            return self.humidity, physics.fix_dry_mass_by_humidity(
                self.grid, *humidity, self.num_fixed, context
            )
        states = _moisture(previous, after, self.humidity, self.pressure)
        fixed = physics.fix_dry_mass(self.grid, *states, context)
        return _one(self.pressure), fixed


@dataclass(frozen=True, eq=False)
class Precipitation:
    """Closes the global water budget.

    Attributes:
        grid: areas and levels.
        humidity: channels of specific total water, kg / kg.
        pressure: channel of surface pressure, Pa; None on pressure levels.
        precipitation, evaporation: channels, m of water in the step.
        seconds: length of the step.
    """

    grid: physics.PhysicsGrid
    humidity: slice
    pressure: int | None
    precipitation: int
    evaporation: int
    seconds: int

    def __call__(
        self, previous: ReadChannels, after: ReadChannels, context: FieldContext | None
    ) -> tuple[slice, Any]:
        """Returns the corrected precipitation."""
        channels = _one(self.precipitation)
        start, end = _moisture(previous, after, self.humidity, self.pressure)
        rain, evaporation = after(channels), after(_one(self.evaporation))
        return channels, physics.fix_precipitation(
            self.grid, start, end, rain, evaporation, self.seconds, context
        )


@dataclass(frozen=True, eq=False)
class Energy:
    """Closes the global energy budget.

    Attributes:
        grid: areas and levels.
        surface_geopotential: (lat, lon) m^2 / s^2.
        temperature, humidity, u, v: channels, K, kg / kg and m / s.
        pressure: channel of surface pressure, Pa; None on pressure levels.
        fluxes: pairs of a channel, J / m^2 in the step, and the sign with which it
            adds energy to the air.
        seconds: length of the step.
    """

    grid: physics.PhysicsGrid
    surface_geopotential: np.ndarray
    temperature: slice
    humidity: slice
    u: slice
    v: slice
    pressure: int | None
    fluxes: Sequence[tuple[int, float]]
    seconds: int

    def __call__(
        self, previous: ReadChannels, after: ReadChannels, context: FieldContext | None
    ) -> tuple[slice, Any]:
        """Returns the corrected temperature."""
        start, end = (
            physics.Air(
                read(self.temperature),
                read(self.humidity),
                read(self.u),
                read(self.v),
                _pressure(read, self.pressure, self.u),
            )
            for read in (previous, after)
        )
        net = sum(sign * after(_one(channel)) for channel, sign in self.fluxes)
        return self.temperature, physics.fix_energy(
            self.grid,
            start,
            end,
            self.surface_geopotential,
            net / self.seconds,
            self.seconds,
            context,
        )


@dataclass(frozen=True, eq=False)
class ChannelFixers:
    """A sequence of fixers for a model's output.

    Attributes:
        fixers: each with the units of the channels; None if they are physical.
    """

    fixers: Sequence[tuple[ChannelFixer, ChannelUnits | None]]

    @property
    def grids(self) -> list[physics.PhysicsGrid]:
        """The grid of each fixer of global means."""
        return [
            fixer.grid
            for fixer, _ in self.fixers
            if isinstance(fixer, DryMass | Precipitation | Energy)
        ]

    def __call__(
        self, x: ChannelArray, y: ChannelArray, context: FieldContext | None = None
    ) -> ChannelArray:
        """Returns the corrected output.

        Args:
            x: input of the model. Its last time is the state before the step, through
                which no gradient flows.

        Differs from CREDIT: channels that no fixer corrects are not converted to
        physical units and back, which would only round them.
        """
        previous = x[:, :, -1:]
        if isinstance(x, jax.Array):
            previous = jax.lax.stop_gradient(previous)
        for fixer, units in self.fixers:
            reads = [partial(_read, array, units, context) for array in (previous, y)]
            channels, values = fixer(*reads, context)
            if units is not None:
                values = units.normalized(values, channels)
            parts = [y[:, : channels.start], values, y[:, channels.stop :]]
            y = namespace(y).concatenate(parts, axis=1)
        return y


def _read(
    array: ChannelArray,
    units: ChannelUnits | None,
    context: FieldContext | None,
    channels: slice,
) -> Any:
    some = array[:, channels] if units is None else units.physical(array, channels)
    return fill_padding(some, 1.0, context)


def _one(channel: int) -> slice:
    return slice(channel, channel + 1)


def _pressure(read: ReadChannels, channel: int | None, channels: slice) -> Any:
    """Surface pressure; zeros on pressure levels, where it is not used."""
    if channel is not None:
        return read(_one(channel))
    some = read(channels)[:, :1]
    return namespace(some).zeros_like(some)


def _moisture(
    previous: ReadChannels, after: ReadChannels, humidity: slice, pressure: int | None
) -> tuple[physics.Moisture, physics.Moisture]:
    start, end = (
        physics.Moisture(read(humidity), _pressure(read, pressure, humidity))
        for read in (previous, after)
    )
    return start, end
