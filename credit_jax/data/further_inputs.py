"""Inputs of a model other than x: fields of separate sources, and encoded times."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np
from jaxtyping import Float

from credit_jax.config.data import INPUT_TIMES, TARGET_TIME, DataConfig
from credit_jax.data.calendars import STANDARD, shift_all
from credit_jax.data.clock import SourceClock, source_clock
from credit_jax.data.schema import ChannelSchema
from credit_jax.data.sources.arrange import arrange
from credit_jax.data.sources.registry import open_source
from credit_jax.data.sources.source import FileGrid, Source, SourceFields
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.coordinates import Coordinates

# The only field type of such sources.
FORCING = "dynamic_forcing"
# Days of a year in CREDIT's encoding.
DAYS = 365.25


@dataclasses.dataclass(frozen=True)
class FurtherInputs:
    """The inputs other than x of a data section; fields are read on access.

    Attributes:
        data: the data section.
        sources: name -> opened source, for sources whose `input` is not x.
        clocks: name -> dates and steps of that source.
        schemas: input of the model -> its channels, before preblocks.
        calendar: calendar in which the steps of a sample are counted.
    """

    data: DataConfig
    sources: Mapping[str, Source]
    clocks: Mapping[str, SourceClock]
    schemas: Mapping[str, ChannelSchema]
    calendar: str

    @property
    def names(self) -> tuple[str, ...]:
        """Names of these inputs of the model."""
        return *self.schemas, *self.data.time_encoding

    def counted_in(self, calendar: str) -> FurtherInputs:
        """Returns a copy whose starts are in another calendar."""
        clocks = {
            name: dataclasses.replace(clock, master=calendar)
            for name, clock in self.clocks.items()
        }
        return dataclasses.replace(self, clocks=clocks, calendar=calendar)

    def fields(self, name: str, start: np.datetime64) -> dict[str, SourceFields]:
        """Reads an input for a step: source -> key -> field (level, time, lat, lon).

        Args:
            name: name of the input.
            start: last time of x in this step.

        Raises:
            ValueError: a time is missing.
        """
        return {
            source: dict(self.sources[source].read(FORCING, self.times(source, start)))
            for source in self.data.sources_of(name)
        }

    def vectors(self, start: np.datetime64) -> dict[str, np.ndarray]:
        """Computes the inputs that encode times of a step, (size,) each."""
        return {
            name: encode_times(
                np.concatenate([self._times(kind, start) for kind in which])
            )
            for name, which in self.data.time_encoding.items()
        }

    def times(self, name: str, starts: np.datetime64 | np.ndarray) -> np.ndarray:
        """(..., time) times at which a source is read, for steps from `starts`."""
        return self.clocks[name].input_times(starts)

    def check(self, starts: np.ndarray) -> None:
        """Checks that all times of steps from `starts` can be read.

        Raises:
            ValueError: see `Source.check`.
        """
        for name, source in self.sources.items():
            source.check(FORCING, np.unique(self.times(name, starts)))

    def available(self, starts: np.ndarray) -> np.ndarray:
        """(starts,) whether all sources have all times of the step from each start."""
        keep = np.ones(len(starts), dtype=bool)
        for name, source in self.sources.items():
            keep &= source.available(self.times(name, starts)).all(axis=-1)
        return keep

    def grids(self, name: str) -> Iterator[FileGrid]:
        """The grids of an input of the model."""
        for source in self.data.sources_of(name):
            yield from self.sources[source].grids()

    def units(self) -> dict[str, tuple[str, str]]:
        """See `Dataset.units`."""
        return {k: unit for s in self.sources.values() for k, unit in s.units().items()}

    def _times(self, which: str, start: np.datetime64) -> np.ndarray:
        """The times of one entry of `time_encoding`."""
        if which not in (INPUT_TIMES, TARGET_TIME):
            return self.times(which, start)
        step = self.data.time_step
        steps = range(1 - self.data.history_len, 1) if which == INPUT_TIMES else (1,)
        starts = np.array([start], dtype="datetime64[ns]")
        return np.concatenate(
            [shift_all(starts, k * step, self.calendar) for k in steps]
        )


def open_further_inputs(
    data: DataConfig,
    open_files: OpenFiles | None = None,
    num_levels: Mapping[str, int] = MappingProxyType({}),
    like: Coordinates | None = None,
) -> FurtherInputs | None:
    """Opens the sources of inputs other than x; None if there are no such inputs.

    Args:
        data: the data section.
        open_files: cache of open files.
        num_levels: number of levels of sources whose files do not define it, by name.
        like: coordinates of a run, at which fields are read; None takes those of the
            first file of each source.

    Raises:
        FileNotFoundError, ValueError: see `open_source`.
    """
    names = [k for name in data.further_inputs for k in data.sources_of(name)]
    if not (names or data.time_encoding):
        return None
    sources = {name: open_source(name, data, open_files) for name in names}
    sources = arrange(sources, like, same_grid=False)
    clocks = {name: clock_of(data, source) for name, source in sources.items()}
    levels = {
        name: source.num_levels or num_levels.get(name, 0)
        for name, source in sources.items()
    }
    axes = {name: source.axes() for name, source in sources.items()}
    schemas = {
        name: ChannelSchema.from_config(data, levels, name, axes)
        for name in data.further_inputs
    }
    return FurtherInputs(data, sources, clocks, schemas, STANDARD)


def clock_of(data: DataConfig, source: Source) -> SourceClock:
    """Builds the clock of an opened source, with errors that name the source."""
    try:
        return source_clock(data, source.config, source.calendar, source.coverage())
    except ValueError as error:
        raise ValueError(f"data.source.{source.name}: {error}") from None


def encode_times(times: np.ndarray) -> Float[np.ndarray, " size"]:
    """Encodes times as sines and cosines of hour of day and day of year, in float32.

    All sines of hours come first, then their cosines, then sines and cosines of days;
    1 January is day 1 of 365.25. CREDIT's `encode_datetime64` (data.py).

    Args:
        times: (time,) datetime64.

    Returns:
        (4 time,).

    >>> encode_times(np.array(["2000-01-01T06"], "datetime64[ns]"))[:2].round(6)
    array([1., 0.], dtype=float32)
    """
    seconds = times.astype("datetime64[s]")
    days, years = seconds.astype("datetime64[D]"), seconds.astype("datetime64[Y]")
    hour = (seconds - days).astype(np.int64) / 3600.0
    number = (days - years.astype("datetime64[D]")).astype(np.int64) + 1
    angles = 2 * np.pi * hour / 24, 2 * np.pi * number / DAYS
    parts = [function(angle) for angle in angles for function in (np.sin, np.cos)]
    return np.concatenate(parts).astype(np.float32)
