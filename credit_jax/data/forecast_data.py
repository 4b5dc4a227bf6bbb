"""Input data of forecasts: initial states, and the forcing of every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from credit_jax.config.data import DataConfig
from credit_jax.data.further_inputs import InputData, further_inputs
from credit_jax.data.opened_data import open_data
from credit_jax.data.schema import READ_ORDER, ChannelSchema
from credit_jax.data.sources.file_source import FileSource
from credit_jax.data.sources.registry import open_source
from credit_jax.data.sources.source import Source, SourceFields
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.axes import horizontal
from credit_jax.named_fields.coordinates import Coordinates, GridCoordinates

PROGNOSTIC, DIAGNOSTIC, FORCING = "prognostic", "diagnostic", "dynamic_forcing"


@dataclass(frozen=True)
class ForecastData(InputData):
    """The sources of a data section, opened for forecasts; fields are read on access.

    Later values of predicted variables are not read, nor are diagnostic variables.

    Attributes:
        left_out: the data section with those variables that are not read.
        open_files: cache of open files.
    """

    left_out: DataConfig
    open_files: OpenFiles | None

    def initial(
        self, start: np.datetime64, state: np.datetime64 | None = None
    ) -> dict[str, SourceFields]:
        """Source -> key -> field (level, history_len, lat, lon), up to a date.

        Args:
            start: the date.
            state: date of the prognostic variables; None is the same.
        """
        dates = {PROGNOSTIC: start if state is None else state}
        return {
            name: {
                key: field
                for kind in READ_ORDER
                for key, field in source.read(
                    kind, self.clocks[name].input_times(dates.get(kind, start))
                ).items()
            }
            for name, source in self.sources.items()
        }

    def forcing(self, start: np.datetime64, step: int) -> dict[str, SourceFields]:
        """Dynamic forcing at a step after a date, fields (level, 1, lat, lon)."""
        time = self.time(start, step)
        return {
            name: dict(source.read(FORCING, self.clocks[name].input_times(time)[-1:]))
            for name, source in self.sources.items()
        }

    def problems(
        self, starts: np.ndarray, num_steps: int, states: np.ndarray | None = None
    ) -> list[str]:
        """Lists what the forecasts need and the data lack, one line each.

        Args:
            starts: (start,) dates.
            num_steps: number of steps of each forecast; forcing is read at all but the
                last.
            states: (state,) dates of the prognostic variables that are read; None is
                all start dates.
        """
        later = [self.shifted(starts, step) for step in range(1, num_steps)]
        lines = []
        for name, source in self.sources.items():
            for kind in source.config.variables.by_type:
                clock = self.clocks[name]
                try:
                    first = starts
                    if kind == PROGNOSTIC and states is not None:
                        first = states
                    times = [clock.input_times(first).ravel()]
                    if kind == FORCING:
                        times += [
                            clock.input_times(step_starts)[..., -1]
                            for step_starts in later
                        ]
                    self._check(source, kind, np.unique(np.concatenate(times)))
                except ValueError as error:
                    lines.append(str(error))
        if self.further is not None:
            try:
                self.further.check(np.concatenate([starts, *later]))
            except ValueError as error:
                lines.append(str(error))
        return lines

    def notes_on_persistence(self, starts: np.ndarray, num_steps: int) -> list[str]:
        """Sources of `temporal_mode: persist` whose last time lies before a forecast.

        Args:
            starts: (start,) dates.
            num_steps: number of steps of each forecast.
        """
        lines = []
        times = self.shifted(starts, num_steps - 1)
        for name, source in self.sources.items():
            clock = self.clocks[name]
            if source.config.temporal_mode != "persist" or not len(clock.starts()):
                continue
            last = clock.starts()[-1]
            later = times > last + clock.step.to_timedelta64()
            if later.any():
                lines.append(
                    f"data.source.{name}: temporal_mode: persist: {later.sum()} of "
                    f"{len(times)} forecasts take its fields of {str(last)[:16]}, the "
                    "last of its dates in the config, though they go to "
                    f"{str(times.max())[:16]}, as in CREDIT; give it start_datetime, "
                    "and end_datetime, that cover the forecasts"
                )
        return lines

    def _check(self, source: Source, kind: str, times: np.ndarray) -> None:
        source.check(kind, times)
        if kind == "static":
            return
        missing = times[~source.available(times)]
        if missing.size:
            raise ValueError(
                f"data.source.{source.name}.variables.{kind}: {missing.size} of "
                f"{times.size} times are missing, the first is {str(missing[0])[:16]}"
            )

    def attributes(self) -> dict[str, dict[str, str]]:
        """Key -> standard_name, long_name and units, those that the files have.

        Variables that are not read are described, too, if their files can be opened.
        """
        attributes = {
            k: v
            for opened_source in self.sources.values()
            for k, v in opened_source.attributes().items()
        }
        for name in self.left_out.sources_of():
            with suppress(OSError, ValueError):
                source = open_source(name, self.left_out, self.open_files)
                attributes |= source.attributes()
        return attributes

    def latitude_longitude(self) -> tuple[np.ndarray, np.ndarray]:
        """Latitudes and longitudes of the files: (lat,) and (lon,), or both (y, x).

        Raises:
            ValueError: no file has them.
        """
        plain = self.rows_and_columns()
        if plain is not None:
            return plain
        for source in self.sources.values():
            curvilinear = curvilinear_axes(source)
            if curvilinear is not None:
                return curvilinear
        raise ValueError(
            "no file of data.source has latitudes and longitudes, which forecasts are "
            "written with"
        )

    def grid_of(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """`latitude_longitude` of one source; None if it is not open, or has none."""
        if name not in self.sources:
            return None
        with suppress(ValueError):
            return replace(
                self, sources={name: self.sources[name]}
            ).latitude_longitude()
        return None


@dataclass(frozen=True)
class GivenState(ForecastData):
    """Data whose prognostic variables are arrays instead of files.

    Attributes:
        state: source -> key -> field (level, time, lat, lon), physical units; sources
            and keys in the order of the config.
        times: (time,) labels of these fields.
        history_len: number of times of an initial state.
    """

    state: Mapping[str, SourceFields] = field(default_factory=dict)
    times: Sequence[np.datetime64] = ()
    history_len: int = 1

    def initial(
        self, start: np.datetime64, state: np.datetime64 | None = None
    ) -> dict[str, SourceFields]:
        """See `ForecastData.initial`."""
        return self.over(super().initial(start, state), start)

    def over(
        self, read: Mapping[str, SourceFields], start: np.datetime64
    ) -> dict[str, SourceFields]:
        """Returns fields that are read for a date, and those that are arrays."""
        dates = [self.time(start, k) for k in range(1 - self.history_len, 1)]
        indices = [[*self.times].index(date) for date in dates if self.state]
        order = [*self.state, *(name for name in read if name not in self.state)]
        return {
            name: {
                **read.get(name, {}),
                **{k: x[:, indices] for k, x in self.state.get(name, {}).items()},
            }
            for name in order
        }

    def path_of(self, key: str, time: np.datetime64, step: int = 0) -> str | None:
        """See `ForecastData.path_of`; the arrays are called the initial state."""
        fields = self.state.get(key.split("/")[0], {})
        return (
            "the initial state" if key in fields else super().path_of(key, time, step)
        )


def curvilinear_axes(source: Source) -> tuple[np.ndarray, np.ndarray] | None:
    """(y, x) latitudes and longitudes of the first file of a source that has them."""
    if not isinstance(source, FileSource):
        return None
    for files in source.files.values():
        dataset = source.reader.open(files.first_path).dataset
        latitude, longitude = horizontal(dataset, files.first_path, 2)
        if latitude is not None and longitude is not None:
            return latitude.values.astype(float), longitude.values.astype(float)
    return None


def open_forecast_data(
    data: DataConfig,
    starts: Sequence[Any] | np.ndarray,
    num_steps: int,
    open_files: OpenFiles | None = None,
    *,
    unread: Sequence[str] = (DIAGNOSTIC,),
    num_levels: Mapping[str, int] = MappingProxyType({}),
    like: Coordinates | None = None,
    shared_grid: bool = True,
) -> ForecastData:
    """Opens the files of a data section for forecasts, without reading fields.

    Args:
        data: the section. Its dates, if there are any, are those that a source with
            `temporal_mode: persist` may take its fields from; by default they reach
            from the first start date to the end of the last forecast.
        starts: start dates.
        num_steps: number of steps of each forecast.
        open_files: files that are open already.
        unread: field types whose files are not opened.
        num_levels: source -> number of levels of its 3-D variables, where neither the
            section nor an opened file determines it.
        like: coordinates of the run, at which fields are read; None takes those of the
            first file.
        shared_grid: whether the sources of x have one grid.

    Raises:
        FileNotFoundError, ValueError: see `open_data`.
    """
    if data.date_ranges is None and not (data.start_datetime and data.end_datetime):
        first, last = (pd.Timestamp(starts[i]) for i in (0, -1))
        dates = {
            "start_datetime": str(first - (data.history_len - 1) * data.time_step),
            "end_datetime": str(last + num_steps * data.time_step),
        }
        data = data.model_copy(update=dates)
    data = data.model_copy(update={"forecast_len": num_steps})
    read = _keeping(data, [kind for kind in READ_ORDER if kind not in unread])
    opened = open_data(read, open_files, like=like, shared_grid=shared_grid)
    x = opened.only(data.sources_of())
    levels = {
        name: (x.sources[name].num_levels if name in x.sources else 0)
        or len(section.level_values or ())
        or num_levels.get(name, 0)
        for name, section in data.source.items()
    }
    expected = {} if like is None else like.sources
    axes = {name: expected.get(name, GridCoordinates()) for name in data.source}
    axes |= {name: source.axes() for name, source in x.sources.items()}
    schema = ChannelSchema.from_config(data, levels, axes=axes)
    return ForecastData(
        **vars(x),
        schema=schema,
        further=further_inputs(opened, num_levels),
        left_out=_keeping(data, unread),
        open_files=open_files,
    )


def _keeping(data: DataConfig, kinds: Sequence[str]) -> DataConfig:
    """The section with the variables of some field types alone."""
    dropped = [kind for kind in (*READ_ORDER, DIAGNOSTIC) if kind not in kinds]
    sources = {}
    for name, source in data.source.items():
        variables = source.variables.model_copy(update=dict.fromkeys(dropped))
        if variables.by_type:
            sources[name] = source.model_copy(update={"variables": variables})
    return data.model_copy(update={"source": sources})
