"""Inputs of a model beside x: fields of sources of their own, and encoded times."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config.data import INPUT_TIMES, TARGET_TIME, DataConfig
from credit_jax.config.dates import duration
from credit_jax.data.calendars import STANDARD, shift_all
from credit_jax.data.channels import ChannelSchema
from credit_jax.data.clock import SourceClock, source_clock
from credit_jax.data.sources.registry import open_source
from credit_jax.data.sources.source import Fields, Grid, Source
from credit_jax.io.open_files import OpenFiles

# Only these are read of such sources.
FORCING = "dynamic_forcing"
# Of a year, as CREDIT counts it.
DAYS = 365.25


@dataclasses.dataclass(frozen=True)
class FurtherInputs:
    """What a data section gives a model beside x; fields are read on access.

    Attributes:
        data: the section.
        sources: name -> opened source, of those with an `input` of their own.
        clocks: name -> dates and steps of that source.
        schemas: input of the model -> its channels, before the preblocks.
        calendar: in which the steps of a sample are counted.
    """

    data: DataConfig
    sources: Mapping[str, Source]
    clocks: Mapping[str, SourceClock]
    schemas: Mapping[str, ChannelSchema]
    calendar: str

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs of the model that are made here."""
        return *self.schemas, *self.data.time_encoding

    def counted_in(self, calendar: str) -> FurtherInputs:
        """The same with the starts in a calendar."""
        clocks = {
            name: dataclasses.replace(clock, master=calendar)
            for name, clock in self.clocks.items()
        }
        return dataclasses.replace(self, clocks=clocks, calendar=calendar)

    def fields(self, name: str, start: np.datetime64) -> dict[str, Fields]:
        """Source -> key -> field (level, time, lat, lon) of an input in a step.

        Args:
            name: of the input.
            start: newest time of x in this step.

        Raises:
            ValueError: a time is missing.
        """
        return {
            source: dict(self.sources[source].read(FORCING, self.times(source, start)))
            for source in self.data.sources_of(name)
        }

    def vectors(self, start: np.datetime64) -> dict[str, np.ndarray]:
        """The inputs that encode times in a step, (size,) each."""
        return {
            name: encode_times(
                np.concatenate([self._times(own, start) for own in which])
            )
            for name, which in self.data.time_encoding.items()
        }

    def times(self, name: str, starts: np.datetime64 | np.ndarray) -> np.ndarray:
        """(..., time) at which a source is read in steps from some times."""
        return self.clocks[name].input_times(starts)

    def check(self, starts: np.ndarray) -> None:
        """Check that all times of steps from `starts` can be read.

        Raises:
            ValueError: see `Source.check`.
        """
        for name, source in self.sources.items():
            source.check(FORCING, np.unique(self.times(name, starts)))

    def available(self, starts: np.ndarray) -> np.ndarray:
        """(starts,) whether no source leaves out a time of a step from each."""
        keep = np.ones(len(starts), dtype=bool)
        for name, source in self.sources.items():
            keep &= source.available(self.times(name, starts)).all(axis=-1)
        return keep

    def grids(self, name: str) -> Iterator[Grid]:
        """The grids of an input of the model."""
        for source in self.data.sources_of(name):
            yield from self.sources[source].grids()

    def units(self) -> dict[str, tuple[str, str]]:
        """See `Dataset.units`."""
        return {k: own for s in self.sources.values() for k, own in s.units().items()}

    def _times(self, which: str, start: np.datetime64) -> np.ndarray:
        """The times that a word of `time_encoding` stands for."""
        if which not in (INPUT_TIMES, TARGET_TIME):
            return self.times(which, start)
        step: pd.Timedelta = duration(self.data.timestep)
        steps = range(1 - self.data.history_len, 1) if which == INPUT_TIMES else (1,)
        own = np.array([start], dtype="datetime64[ns]")
        return np.concatenate([shift_all(own, k * step, self.calendar) for k in steps])


def open_further_inputs(
    data: DataConfig,
    open_files: OpenFiles | None = None,
    num_levels: Mapping[str, int] = MappingProxyType({}),
) -> FurtherInputs | None:
    """Opens the sources that make inputs beside x; None if nothing is made.

    Args:
        data: the section.
        open_files: files that are open already.
        num_levels: source -> levels, where an opened source does not say how many.

    Raises:
        FileNotFoundError, ValueError: see `open_source`.
    """
    names = [own for name in data.further_inputs for own in data.sources_of(name)]
    if not (names or data.time_encoding):
        return None
    sources = {name: open_source(name, data, open_files) for name in names}
    clocks = {name: clock_of(data, source) for name, source in sources.items()}
    levels = {
        name: own.num_levels or num_levels.get(name, 0) for name, own in sources.items()
    }
    schemas = {
        name: ChannelSchema.from_config(data, levels, name)
        for name in data.further_inputs
    }
    return FurtherInputs(data, sources, clocks, schemas, STANDARD)


def clock_of(data: DataConfig, source: Source) -> SourceClock:
    """The clock of an opened source; errors name the source."""
    try:
        return source_clock(data, source.config, source.calendar, source.coverage())
    except ValueError as error:
        raise ValueError(f"data.source.{source.name}: {error}") from None


def encode_times(times: np.ndarray) -> Float[np.ndarray, " size"]:
    """Sines and cosines of the hour and of the day of the year, float32.

    All sines of hours come first, then their cosines, then sines and cosines of days;
    1 January is day 1 of 365.25.

    Args:
        times: (time,) datetime64.

    Source: `encode_datetime64` of CREDIT's data.py.

    >>> encode_times(np.array(["2000-01-01T06"], "datetime64[ns]"))[:2].round(6)
    array([1., 0.], dtype=float32)
    """
    seconds = times.astype("datetime64[s]")
    days, years = seconds.astype("datetime64[D]"), seconds.astype("datetime64[Y]")
    hour = (seconds - days).astype(np.int64) / 3600.0
    number = (days - years.astype("datetime64[D]")).astype(np.int64) + 1
    angles = 2 * np.pi * hour / 24, 2 * np.pi * number / DAYS
    found = [function(angle) for angle in angles for function in (np.sin, np.cos)]
    return np.concatenate(found).astype(np.float32)
