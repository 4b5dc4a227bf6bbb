"""Forecasts of a package or a run from arrays, step by step."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from credit_jax.checkpoint.artifact import Artifact
from credit_jax.config import Config
from credit_jax.config.dates import date_label
from credit_jax.config.inference import InferenceConfig
from credit_jax.config.parallelism import ParallelismConfig
from credit_jax.data import ChannelSchema, forecast_data
from credit_jax.data.dataset import regridded_axes
from credit_jax.data.perturbations import Perturbation, add_changes, parse_perturbation
from credit_jax.data.schedule import ForecastSchedule, Task
from credit_jax.data.sources.source import SourceFields
from credit_jax.forecast.autoregression import ForecastStep
from credit_jax.forecast.forecaster import Forecaster
from credit_jax.forecast.members import MemberNoise, member_noise, members_of
from credit_jax.named_fields.coordinates import GridCoordinates, as_values
from credit_jax.named_fields.tree import by_source
from credit_jax.packages.arrays import groups_of, read_grid
from credit_jax.packages.manifest import GRID
from credit_jax.packages.package import Package
from credit_jax.parallel.mesh.devices import forward_devices
from credit_jax.parallel.params.precision import Precision
from credit_jax.parallel.placement import place_batch
from credit_jax.plan import plan_model
from credit_jax.plan.channels import check_forecast_units
from credit_jax.plan.forecast import forecast_pipeline, forecast_schema
from credit_jax.transforms import Pipeline, Rollout

_LOG = logging.getLogger("credit_jax")
_PROGNOSTIC = "prognostic"
# Key -> field (batch, level, time, lat, lon), physical units, float32.
State = Mapping[str, np.ndarray]
# Latitudes and longitudes, (lat,) and (lon,), or both (y, x); degrees.
LatLon = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class StateForecaster:
    """A package or a run on a mesh, as a function from states to forecasts."""

    checkpoint: Artifact  # the run, package or checkpoint of CREDIT, opened
    config: Config
    schema: ChannelSchema  # channels of x and y
    # Makes the input of the model from prognostic variables and forcing.
    reader: forecast_data.ForecastReader
    step: ForecastStep
    weights: Any  # on the mesh
    # Degrees of the rows and columns of the model.
    latitude: np.ndarray
    longitude: np.ndarray
    # Source -> the grid of its states, another one where preblocks regrid.
    grids: Mapping[str, LatLon]

    @cached_property
    def prognostic(self) -> dict[str, int]:
        """Key -> levels of the variables of a state, named and ordered as in files."""
        every = self.reader.data.schema.input
        groups = (group for group in every if group.field_type == _PROGNOSTIC)
        return {group.var_key: group.n_levels for group in groups}

    @property
    def history_len(self) -> int:
        """Number of times of the input of the model."""
        return self.step.model.model_def.frames

    def times_of_state(self, num_members: int = 1) -> tuple[int, ...]:
        """Steps from the start to the times of a state, 0 last."""
        schedule = replace(self.reader.schedule, num_members=num_members)
        # Some perturbations need states before the start.
        previous = self._perturbation.states(schedule)
        history = range(self.history_len)
        return tuple(sorted({-k - frame for k in previous for frame in history}))

    @cached_property
    def _perturbation(self) -> Perturbation:
        inference = self.config.inference or InferenceConfig()
        return parse_perturbation(inference.perturbation)

    @property
    def timestep(self) -> np.timedelta64:
        return self.reader.data.data.time_step.to_timedelta64()

    def forecast(
        self, state: State, times: np.ndarray, members: Sequence[int] | None = None
    ) -> Iterator[dict[str, jax.Array]]:
        """Yields the steps after some states, without end, in physical units."""
        # Members above 0 are perturbed as the config says; each has its noise.
        members = [0] * len(times) if members is None else members
        batch, perturb = self.batch(state, times, members), None
        if batch.reader.schedule.num_members > 1:
            grid, seed = (self.latitude, self.longitude), self.config.seed
            arguments = seed, batch.reader, grid, self.step, self.weights, batch.noise
            perturb = self._perturbation.bind(members_of(*arguments))
        return self._steps(batch, perturb)

    def batch(
        self, state: State, times: np.ndarray, members: Sequence[int]
    ) -> StateBatch:
        """The samples of a forecast, with what reads their states and forcing."""
        num_members = max(members) + 1
        if num_members > 1:
            keys = self.schema.target_slices()
            if problems := self._perturbation.unknown_variables(keys):
                raise ValueError(problems[0])
        steps = self.times_of_state(num_members)
        for key, levels in self.prognostic.items():
            latitude, longitude = self.grids[key.split("/")[0]]
            grid = latitude.shape[0], longitude.shape[-1]
            expected = (len(times), levels, len(steps), *grid)
            actual = np.shape(state[key]) if key in state else None
            if actual != expected:
                raise ValueError(
                    f"state: {key} has shape {actual}, expected {expected}: (batch, "
                    "level, time, lat, lon)"
                )
        labels = [date_label(time).to_datetime64() for time in times]
        starts = np.unique(np.array(labels, "datetime64[ns]"))
        numbers = np.searchsorted(starts, np.array(labels, "datetime64[ns]"))
        tasks = [Task(int(n), int(m)) for n, m in zip(numbers, members, strict=True)]
        reader = self.reader
        schedule = replace(reader.schedule, starts=starts, num_members=num_members)
        samples = []
        for index, label in enumerate(labels):
            arrays = {key: np.asarray(state[key][index]) for key in self.prognostic}
            at = [reader.data.time(label, step) for step in steps]
            samples.append(replace(reader.data, state=by_source(arrays), times=at))
        # Those of the dataclass alone: a reader that was used has cached properties.
        names = [field.name for field in dataclasses.fields(reader)]
        fields = {name: getattr(reader, name) for name in names}
        fields |= {"data": samples[0], "schedule": schedule, "samples": samples}
        noise = member_noise(self.config.seed, schedule, self.step.model)
        return StateBatch(labels, tasks, _BatchReader(**fields), noise)

    def _steps(self, batch: StateBatch, perturb: Any) -> Iterator[dict[str, jax.Array]]:
        mesh, times = self.step.model.mesh, batch.times
        if perturb is not None and self._perturbation.runs_model:
            perturb = partial(add_changes, perturb(batch.tasks))
        first = batch.reader.at(times, batch.tasks, perturb).arrays

        def forcing() -> Iterator[Any]:
            of_step = self.reader.forcing_at(times, 0)
            for number in itertools.count(1):
                lacking = None
                try:
                    of_step = self.reader.forcing_at(times, number)
                except ValueError as error:
                    # Only the next step needs this forcing: its error is raised there.
                    lacking = error
                yield place_batch(of_step, mesh)
                if lacking is not None:
                    raise lacking

        noise = batch.noise and batch.noise.of(batch.tasks)
        rows = self.step.model.model_def.image_height
        arrays = place_batch(first, mesh)
        for fields in self.step.steps(self.weights, arrays, forcing(), noise):
            yield {key: field[:, :, 0, :rows] for key, field in fields.items()}


@dataclass(frozen=True)
class _BatchReader(forecast_data.ForecastReader):
    """Reads samples whose states are arrays, each its own."""

    samples: Sequence[forecast_data.GivenState] = ()  # the data of each sample

    def _initial(
        self, starts: Sequence[np.datetime64]
    ) -> list[dict[str, SourceFields]]:
        read = forecast_data.ForecastData.initial
        once = {start: read(self.data, start) for start in dict.fromkeys(starts)}
        pairs = zip(self.samples, starts, strict=True)
        return [data.over(once[start], start) for data, start in pairs]


@dataclass(frozen=True)
class StateBatch:
    """The samples of a forecast."""

    times: Sequence[np.datetime64]
    tasks: Sequence[Task]  # their start dates and members, by number
    reader: forecast_data.ForecastReader  # reads their states and forcing
    noise: MemberNoise | None  # noise of models that draw noise; None for other models


def load_forecaster(
    checkpoint: Artifact,
    data: str | Path | None,
    overrides: Sequence[str],
    mesh: tuple[ParallelismConfig, int | None],  # degrees, and number of devices
    policy: Precision,
) -> StateForecaster:
    """Builds the model of a package or a run on a mesh."""
    is_package = isinstance(checkpoint, Package)
    like, unread = checkpoint.coordinates, [forecast_data.DIAGNOSTIC]
    sources = {} if like is None else like.sources
    # States are given; files of prognostic variables are opened for their grid and
    # levels where nothing else records them.
    if is_package:
        unread.append(_PROGNOSTIC)
        groups = groups_of(checkpoint.channels["input"])
        num_levels = {k.source: k.n_levels for k in groups if "/3d/" in k.var_key}
    else:
        num_levels = {k: len(axes.levels) for k, axes in sources.items() if axes.levels}
    config = checkpoint.config(overrides, data, unread=unread)
    inference = config.inference or InferenceConfig()
    pipeline = forecast_pipeline(config, inference)
    section = inference.data or config.data
    if not is_package and like is not None and like.latitude is not None:
        listed = {k for k, source in config.data.source.items() if source.level_values}
        has_levels = {*listed, *num_levels} >= config.data.source.keys()
        has_grids = all(axes.latitude is not None for axes in sources.values())
        if has_levels and (pipeline.grid is None or has_grids):
            unread.append(_PROGNOSTIC)
    chosen = forward_devices(*mesh)
    plan = plan_model(config.model, mesh[0], num_devices=len(chosen), key="parallelism")
    model = plan.build(chosen, mp_policy=policy)
    opened = forecast_data.open_forecast_data(
        section,
        [config.data.ranges[0][0]],
        1,
        unread=unread,
        num_levels=num_levels,
        like=like if inference.data is None else None,
        shared_grid=pipeline.grid is None,
    )
    fields = {name: getattr(opened, name) for name in vars(opened)}
    order = {name: {} for name in section.source}
    frames = model.model_def.frames
    state = forecast_data.GivenState(**fields, state=order, history_len=frames)
    schema = forecast_schema(config, inference, model.model_def.config, pipeline, state)
    pipeline, (latitude, longitude) = _located(checkpoint, pipeline, opened)
    grids = _grids(checkpoint, opened, pipeline, (latitude, longitude), unread)
    checkpoint = checkpoint.of_data(schema, opened.further, latitude, longitude)
    no_dates = np.array([], "datetime64[ns]")
    schedule = ForecastSchedule(no_dates, 1, opened.data.time_step, opened.calendar)
    reader = forecast_data.ForecastReader(state, pipeline, schedule, schema)
    units = checkpoint.units, reader.units
    for line in check_forecast_units(*units, inference, str(checkpoint.path)):
        _LOG.warning("note: %s", line)
    # With more than one step, each makes the input of the next.
    channels = schema.input_slices(), schema.target_slices()
    step = ForecastStep(model, Rollout.of(pipeline, *channels, num_steps=2))
    weights = Forecaster(model, *checkpoint.restore(model)).weights
    return StateForecaster(
        checkpoint, config, schema, reader, step, weights, latitude, longitude, grids
    )


def _located(
    checkpoint: Artifact, pipeline: Pipeline, opened: forecast_data.ForecastData
) -> tuple[Pipeline, LatLon]:
    """The transforms at the grid of the data, and the grid of the model."""
    tree_schema, like = opened.schema.as_read(), checkpoint.coordinates
    origin, new = str(checkpoint.path), pipeline.grid
    if new is not None:
        space = regridded_axes(new)
        # Where files have none, the first grid among the recorded sources.
        grid = opened.coordinates().grid
        for axes in like.sources.values() if like else ():
            grid = grid.over(axes.grid)
        return pipeline.at(tree_schema, grid), space
    if isinstance(checkpoint, Package):
        latitude, longitude = read_grid(checkpoint.path / GRID)
    elif like is not None and like.latitude is not None:
        latitude, longitude = np.array(like.latitude), np.array(like.longitude)
    else:
        latitude, longitude = opened.latitude_longitude()
    grid = GridCoordinates(as_values(latitude), as_values(longitude), where=origin)
    return pipeline.at(tree_schema, grid), (latitude, longitude)


def _grids(
    checkpoint: Artifact,
    opened: forecast_data.ForecastData,
    pipeline: Pipeline,
    of_model: LatLon,
    unread: Sequence[str],
) -> dict[str, LatLon]:
    """Source -> the grid of its states."""
    every = [group for group in opened.schema.input if group.field_type == _PROGNOSTIC]
    names = dict.fromkeys(group.source for group in every)
    if pipeline.grid is None:
        return dict.fromkeys(names, of_model)
    like, grids = checkpoint.coordinates, {}
    for name in names:
        grid = opened.grid_of(name) if _PROGNOSTIC not in unread else None
        recorded = like.sources.get(name) if like else None
        if grid is None and recorded is not None and recorded.latitude is not None:
            grid = np.array(recorded.latitude), np.array(recorded.longitude)
        if grid is None:
            raise ValueError(
                f"{checkpoint.path}: its preblocks regrid the data, and neither files "
                f"nor the checkpoint give the latitudes and longitudes of source {name}"
            )
        grids[name] = grid
    return grids
