"""Input data of forecasts: initial states, and the forcing of every step.

`ForecastData` are the files, and `ForecastReader` makes inputs of `ForecastStep` of
their fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from jax.sharding import Mesh

from credit_jax import transforms
from credit_jax.config.data import DataConfig
from credit_jax.config.sources.source import MAIN_INPUT
from credit_jax.data.channel_checks import ChannelChecks, further_arrays
from credit_jax.data.dataset import stacked
from credit_jax.data.opened_data import InputData, open_data, schemas_of
from credit_jax.data.schedule import ForecastSchedule, Task
from credit_jax.data.schema import READ_ORDER, ChannelSchema
from credit_jax.data.sources.file_source import FileSource
from credit_jax.data.sources.registry import open_source
from credit_jax.data.sources.source import Source, SourceFields
from credit_jax.data.values import check_fields, files_named
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.axes import horizontal
from credit_jax.named_fields.coordinates import Coordinates
from credit_jax.named_fields.tree import by_key
from credit_jax.parallel.placement import place_batch
from credit_jax.transforms import FieldTree, Phase, Pipeline
from credit_jax.transforms.rollout import DYNAMIC_FORCING

PROGNOSTIC, DIAGNOSTIC = "prognostic", "diagnostic"


@dataclass(frozen=True)
class ForecastData(InputData):
    """The sources of a data section, opened for forecasts and read on access."""

    # Later values of predicted variables are not read, nor are diagnostic variables.
    left_out: DataConfig  # the data section with those variables that are not read
    open_files: OpenFiles | None  # cache of open files

    def initial(
        self, start: np.datetime64, state: np.datetime64 | None = None
    ) -> dict[str, SourceFields]:
        """Source -> key -> field (level, history_len, lat, lon), up to a date."""
        dates = {PROGNOSTIC: start if state is None else state}
        return self.read(
            READ_ORDER, lambda kind, clock: clock.input_times(dates.get(kind, start))
        )

    def forcing(self, start: np.datetime64, step: int) -> dict[str, SourceFields]:
        """Dynamic forcing at a step after a date, fields (level, 1, lat, lon)."""
        time = self.time(start, step)
        return self.read(
            (DYNAMIC_FORCING,), lambda _, clock: clock.input_times(time)[-1:]
        )

    def problems(
        self, starts: np.ndarray, num_steps: int, states: np.ndarray | None = None
    ) -> list[str]:
        """Lists what the forecasts need and the data lack, one line each."""
        # Forcing is read at all but the last step, prognostic variables at the states.
        later = [self.shifted(starts, step) for step in range(1, num_steps)]
        lines = list[str | None]()
        for name, source in self.sources.items():
            # Further inputs are read at all of their times in each step.
            last = slice(-1 * (source.config.input == MAIN_INPUT), None)
            clock = self.clocks[name]
            for kind in source.config.variables.by_type:
                first = starts
                if kind == PROGNOSTIC and states is not None:
                    first = states
                lasts = later if kind == DYNAMIC_FORCING else []
                try:
                    times = [clock.input_times(first)]
                    times += [clock.input_times(each)[..., last] for each in lasts]
                    needed = np.concatenate([*map(np.ravel, times)])
                    lines.append(self.missing(name, kind, needed))
                except ValueError as error:
                    lines.append(str(error))
        return [line for line in lines if line is not None]

    def notes_on_persistence(self, starts: np.ndarray, num_steps: int) -> list[str]:
        """Sources of `temporal_mode: persist` whose last time precedes a forecast."""
        lines = []
        times = self.shifted(starts, num_steps - 1)
        for name, source in self.x.items():
            clock = self.clocks[name]
            if source.config.temporal_mode != "persist" or not len(clock.starts):
                continue
            last = clock.starts[-1]
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

    def attributes(self) -> dict[str, dict[str, str]]:
        """Key -> standard_name, long_name and units, those that the files have."""
        attributes: dict[str, dict[str, str]] = {}
        for source in self.x.values():
            attributes |= source.attributes()
        # Variables that are not read, too, if their files can be opened.
        for name in self.left_out.sources_of():
            with suppress(OSError, ValueError):
                source = open_source(name, self.left_out, self.open_files)
                attributes |= source.attributes()
        return attributes

    def latitude_longitude(self) -> tuple[np.ndarray, np.ndarray]:
        """Latitudes and longitudes of the files: (lat,) and (lon,), or both (y, x)."""
        curvilinear = filter(None, map(curvilinear_axes, self.x.values()))
        axes = self.rows_and_columns() or next(curvilinear, None)
        if axes is not None:
            return axes
        raise ValueError(
            "no file of data.source has latitudes and longitudes, which forecasts are "
            "written with"
        )

    def grid_of(self, name: str) -> tuple[np.ndarray, np.ndarray] | None:
        """`latitude_longitude` of one source; None if it is not open, or has none."""
        with suppress(ValueError):
            if name in self.x:
                one = replace(self, sources={name: self.x[name]})
                return one.latitude_longitude()
        return None


@dataclass(frozen=True)
class GivenState(ForecastData):
    """Data whose prognostic variables are arrays instead of files."""

    # source -> key -> field (level, time, lat, lon), physical units; sources and keys
    # in the order of the config.
    state: Mapping[str, SourceFields] = field(default_factory=dict)
    times: Sequence[np.datetime64] = ()  # (time,) labels of these fields
    history_len: int = 1  # number of times of an initial state

    def initial(
        self, start: np.datetime64, state: np.datetime64 | None = None
    ) -> dict[str, SourceFields]:
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
    # Source -> levels of its 3-D variables, if no section or file determines them.
    num_levels: Mapping[str, int] = MappingProxyType({}),
    like: Coordinates | None = None,
    shared_grid: bool = True,
) -> ForecastData:
    """Opens the files of a data section for forecasts, without reading fields."""
    # A source with `temporal_mode: persist` takes its fields from these dates.
    if data.date_ranges is None and not (data.start_datetime and data.end_datetime):
        first, last = (pd.Timestamp(starts[i]) for i in (0, -1))
        dates = {
            "start_datetime": str(first - (data.history_len - 1) * data.time_step),
            "end_datetime": str(last + num_steps * data.time_step),
        }
        data = data.model_copy(update=dates)
    data = data.model_copy(update={"forecast_len": num_steps})
    read = data.of_types([kind for kind in READ_ORDER if kind not in unread])
    opened = open_data(read, open_files, like=like, shared_grid=shared_grid)
    schema, further = schemas_of(data, opened, num_levels, like)
    return ForecastData(
        **vars(opened),
        schema=schema,
        further=further,
        left_out=data.of_types(unread),
        open_files=open_files,
    )


# Named fields in physical units, (batch, level, time, lat, lon) each, and the tasks.
Perturb = Callable[[FieldTree, Sequence[Task]], FieldTree]


@dataclass(frozen=True)
class FirstStep:
    """The input of the first step of some forecasts."""

    # "x", "static", and "x_physical" and "ic_raw" if transforms need them; the further
    # inputs of the model by name.
    arrays: dict[str, Any]
    # key -> (batch, level, lat, lon), the initial state in physical units.
    fields: dict[str, np.ndarray]


@dataclass(frozen=True)
class ForecastReader:
    """Reads the input of forecasts on the host."""

    data: ForecastData  # the files
    pipeline: Pipeline  # transforms, whose preblocks make x
    schedule: ForecastSchedule  # start dates of the tasks
    schema: ChannelSchema  # the channels of x
    # Changes the initial states of ensemble members; None changes nothing.
    perturb: Perturb | None = None
    finite: bool = True  # whether initial states must be finite
    # Date of the only initial state that is read; forecasts from other dates begin with
    # other states, for which it stands in. None reads one for each.
    state: np.datetime64 | None = None

    @property
    def units(self) -> dict[str, tuple[str, str]]:
        """Key of a channel's variable -> its unit and file, those that are known."""
        return transforms.units_after(self.pipeline, self.data.units())

    def first(self, tasks: Sequence[Task]) -> FirstStep:
        """Reads the initial states of some tasks, stacked along the batch dim."""
        starts = [self.schedule.starts[task.start] for task in tasks]
        return self.at(starts, tasks, self.perturb)

    def at(
        self,
        starts: Sequence[np.datetime64],
        tasks: Sequence[Task] = (),
        perturb: Perturb | None = None,
    ) -> FirstStep:
        """Reads the states at some dates, each perturbed like that of its task."""
        fields = stacked(self._initial(starts))
        raw: FieldTree = {"input": fields, "input_times": np.array(starts)}
        done = self.pipeline.run(Phase.INITIAL, raw)
        aligned = self.pipeline.aligned(done, Phase.BEFORE_STEP)
        steps = self.pipeline
        if perturb is not None:
            # Perturbations have the names and the grid of the fields of a step.
            aligned = {**aligned, "input": perturb(aligned["input"], tasks)}
            steps = transforms.after_aligned(steps)
            done = steps.with_input_names(aligned)
        physical = aligned["input"]
        x = steps.run(Phase.BEFORE_STEP, done)["x"]
        if self.state is not None and {*starts} != {self.state}:
            # The state was checked at its date.
            self._dynamic_forcing(starts, 0)
        elif self.finite:
            check_raw = partial(check_fields, fields, starts)
            with files_named(self.data.path_of):
                self._checks.check(x, None, np.array(starts), check_raw)
        entries = transforms.initial_entries(self.pipeline, raw["input"], physical)
        # Copied, as the step donates the buffer of x_physical.
        states = {k: x[:, :, -1].copy() for k, x in by_key(physical).items()}
        arrays = {"x": x, "static": transforms.constant_fields(physical), **entries}
        return FirstStep({**arrays, **self._further(starts, 0)}, states)

    # Samples of one date whose states are arrays differ: a subclass reads those.
    def _initial(
        self, starts: Sequence[np.datetime64]
    ) -> list[dict[str, SourceFields]]:
        """Reads the fields of each date once."""
        once = {t: self.data.initial(t, self.state) for t in dict.fromkeys(starts)}
        return [once[start] for start in starts]

    def forcing(self, tasks: Sequence[Task], step: int) -> FieldTree:
        """Reads the input of the step after `step` for some tasks; see `forcing_at`."""
        starts = [self.schedule.starts[task.start] for task in tasks]
        return self.forcing_at(starts, step)

    def forcing_at(self, starts: Sequence[np.datetime64], step: int) -> FieldTree:
        """Reads the input of the step after `step`, for forecasts from some dates."""
        forcing = self._dynamic_forcing(starts, step)
        return {transforms.FORCING: forcing, **self._further(starts, step)}

    def _dynamic_forcing(self, starts: Sequence[np.datetime64], step: int) -> FieldTree:
        """The dynamic forcing at the end of a step, checked."""
        once = {
            start: self.data.forcing(start, step) for start in dict.fromkeys(starts)
        }
        fields = stacked([once[start] for start in starts])
        forcing = self.pipeline.aligned({"input": fields}, *transforms.PREBLOCKS)[
            "input"
        ]
        if self.finite:
            times = np.array([self.data.time(start, step) for start in starts])
            names = [f"step {step} of the forecast from {str(t)[:16]}" for t in starts]
            check_raw = partial(check_fields, fields, times)
            with files_named(self.data.path_of):
                self._checks.check_forcing(forcing, times, check_raw, names)
        return forcing

    def _further(
        self, starts: Sequence[np.datetime64], step: int
    ) -> dict[str, np.ndarray]:
        """The inputs of the model besides x, for the step after `step`."""
        if not (names := self.data.further_names):
            return {}
        times, noted = [self.data.time(t, step) for t in starts], self._checks.noted
        with files_named(self.data.path_of):
            by_time = {
                t: further_arrays(self.data, [t], self.pipeline, noted=noted)
                for t in set(times)
            }
        return {k: np.concatenate([by_time[t][k] for t in times]) for k in names}

    @cached_property
    def _checks(self) -> ChannelChecks:
        # Outliers are notes: no other forecast stands for one.
        data, noted = self.data, self.data.data.on_outlier != "raise"
        return ChannelChecks(data, self.pipeline, self.schema, data.schema, noted)

    def stream(
        self,
        groups: Sequence[Sequence[Task]],
        num_steps: int,
        mesh: Mesh,
        ranks: Sequence[int] | None = None,
    ) -> Iterator[Any]:
        """Yields the input of every step of groups of tasks, placed on the mesh."""
        # Of each group a `FirstStep`, then the forcing at the end of every step but the
        # last; tasks are those of this process's ranks, rank after rank.
        for tasks in groups:
            first = self.first(tasks)
            placed = place_batch(first.arrays, mesh, local_dp_ranks=ranks)
            yield FirstStep(placed, first.fields)
            for step in range(1, num_steps):
                forcing = self.forcing(tasks, step)
                yield place_batch(forcing, mesh, local_dp_ranks=ranks)
