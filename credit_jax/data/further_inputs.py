"""Inputs of a model other than x: fields of separate sources, and encoded times."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np
from jaxtyping import Float

from credit_jax.config.data import INPUT_TIMES, TARGET_TIME
from credit_jax.data.opened_data import OpenedData
from credit_jax.data.schema import ChannelSchema
from credit_jax.data.sources.source import FileGrid, SourceFields
from credit_jax.named_fields.coordinates import Coordinates

# The only field type of such sources.
FORCING = "dynamic_forcing"
# Days of a year in CREDIT's encoding.
DAYS = 365.25


@dataclasses.dataclass(frozen=True)
class FurtherInputs(OpenedData):
    """The inputs other than x of a data section; fields are read on access."""

    schemas: Mapping[str, ChannelSchema]  # by input, before preblocks

    @property
    def names(self) -> tuple[str, ...]:
        """Names of these inputs of the model."""
        return *self.schemas, *self.data.time_encoding

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
        steps = {INPUT_TIMES: range(1 - self.data.history_len, 1), TARGET_TIME: (1,)}

        def times(which: str) -> np.ndarray:
            if which not in steps:
                return self.times(which, start)
            return np.stack([self.time(start, step) for step in steps[which]])

        return {
            name: encode_times(np.concatenate([*map(times, which)]))
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

    def grids_of(self, name: str) -> Iterator[FileGrid]:
        """The grids of an input of the model."""
        return self.only(self.data.sources_of(name)).grids()


@dataclasses.dataclass(frozen=True)
class InputData(OpenedData):
    """The sources of x, and the further inputs of a model."""

    schema: ChannelSchema  # of x, and of y as it is read, without transforms
    further: FurtherInputs | None

    @property
    def _every(self) -> OpenedData:
        """All sources, those of the further inputs among them."""
        sources, clocks = dict(self.sources), dict(self.clocks)
        if self.further is not None:
            sources |= self.further.sources
            clocks |= self.further.clocks
        return OpenedData(self.data, sources, clocks, self.calendar)

    def coordinates(self) -> Coordinates:
        """See `OpenedData.coordinates`; those of the further inputs are among them."""
        return self._every.coordinates()

    def path_of(self, key: str, time: np.datetime64, step: int = 0) -> str | None:
        """See `OpenedData.path_of`; those of the further inputs are among them."""
        return self._every.path_of(key, time, step)

    def units(self) -> dict[str, tuple[str, str]]:
        """See `OpenedData.units`; those of the further inputs are among them."""
        return self._every.units()


def further_inputs(
    opened: OpenedData, num_levels: Mapping[str, int] = MappingProxyType({})
) -> FurtherInputs | None:
    """The inputs other than x of opened data; None if there are none.

    Args:
        opened: all sources of a data section.
        num_levels: number of levels of sources whose files do not define it, by name.
    """
    data = opened.data
    further = opened.only(data.source.keys() - data.sources_of().keys())
    if not (further.sources or data.time_encoding):
        return None
    levels = {
        name: source.num_levels or num_levels.get(name, 0)
        for name, source in further.sources.items()
    }
    axes = {name: source.axes() for name, source in further.sources.items()}
    schemas = {
        name: ChannelSchema.from_config(data, levels, name, axes)
        for name in data.further_inputs
    }
    return FurtherInputs(**vars(further), schemas=schemas)


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
