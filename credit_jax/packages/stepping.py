"""Forecasts of a package or a run from arrays, step by step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from credit_jax.config import Config, load_config
from credit_jax.config.dates import date_label
from credit_jax.config.inference import InferenceConfig
from credit_jax.config.load import CONFIG_NAME
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.data.forecast_data import (
    DIAGNOSTIC,
    ForecastData,
    GivenState,
    open_forecast_data,
)
from credit_jax.data.forecast_reader import ForecastReader, Perturb
from credit_jax.data.schedule import Schedule, Task
from credit_jax.data.schema import ChannelSchema
from credit_jax.data.sources.source import SourceFields
from credit_jax.forecast.autoregression import ForecastStep
from credit_jax.forecast.forecaster import Forecaster
from credit_jax.forecast.member_noise import MemberNoise, member_noise
from credit_jax.forecast.perturbation import noise_perturbation
from credit_jax.named_fields.coordinates import Axes, as_values
from credit_jax.packages.channel_table import channel_groups, order_of
from credit_jax.packages.grids import read_grid
from credit_jax.packages.manifest import GRID
from credit_jax.packages.package import Package
from credit_jax.parallel.mesh.devices import forward_devices
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.parallel.placement import place_batch
from credit_jax.plan import plan_model
from credit_jax.plan.forecast import (
    forecast_pipeline,
    forecast_rollout,
    forecast_schema,
)
from credit_jax.training.run_weights import RunWeights
from credit_jax.transforms import Pipeline

_PROGNOSTIC = "prognostic"
# Key -> field (batch, level, lat, lon), physical units, float32.
State = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class StateForecaster:
    """A package or a run on a mesh, as a function from states to forecasts.

    Static fields and dynamic forcing are read or computed from the sources of its
    config; a package has its static fields.

    Attributes:
        checkpoint: the package or the run, opened.
        config: config of the forecasts.
        schema: channels of x and y.
        reader: makes the input of the model from prognostic variables and forcing.
        step: step of the model.
        weights: weights on the mesh.
        latitude, longitude: latitude and longitude of the grid, degrees.
    """

    checkpoint: Package | RunWeights
    config: Config
    schema: ChannelSchema
    reader: ForecastReader
    step: ForecastStep
    weights: Any
    latitude: np.ndarray
    longitude: np.ndarray

    @cached_property
    def prognostic(self) -> dict[str, int]:
        """Key -> levels of the variables of a state, in the order of the input."""
        groups = (g for g in self.schema.input if g.field_type == _PROGNOSTIC)
        return {group.var_key: group.n_levels for group in groups}

    @property
    def history_len(self) -> int:
        """Number of times of a state."""
        return self.step.model.model_def.frames

    @property
    def timestep(self) -> np.timedelta64:
        """Time between two states."""
        return self.reader.data.timestep.to_timedelta64()

    def forecast(
        self, state: State, times: np.ndarray, members: Sequence[int] | None = None
    ) -> Iterator[dict[str, jax.Array]]:
        """Yields the steps after some states, one after another, without end.

        Args:
            state: key -> (batch, level, history_len, lat, lon), physical units, of
                every prognostic variable.
            times: (batch,) datetime64 of the newest fields of each sample.
            members: the number of the ensemble member that each sample is: a member
                above 0 is perturbed as the config says, and each has its noise in
                models that draw noise; None is member 0.

        Yields:
            Key -> (batch, level, lat, lon) of every predicted variable, float32, in
            physical units, on the mesh.

        Raises:
            ValueError: fields are missing or have another shape, the forcing of a time
                cannot be read, or the perturbation needs earlier states.
        """
        self._check(state, len(times))
        return self._steps(_Batch.of(self, times, members), state)

    def _steps(self, batch: _Batch, state: State) -> Iterator[dict[str, jax.Array]]:
        mesh, times = self.step.model.mesh, batch.times
        first = place_batch(self._first(state, batch), mesh)
        carried, constants = self.step.start(first)
        forcing, lacking = self._forcing(times, 0), None
        for number in itertools.count(1):
            if lacking is not None:
                raise lacking
            try:
                forcing = self._forcing(times, number)
            except ValueError as error:
                # Only the next step needs this forcing, so the error is raised there.
                lacking = error
            placed = place_batch(forcing, mesh)
            noise = batch.noise and batch.noise.of(batch.tasks).fold_in(number)
            carried, fields = self.step(self.weights, carried, constants, placed, noise)
            rows = self.step.model.model_def.image_height
            yield {key: field[:, :, 0, :rows] for key, field in fields.items()}

    def _first(self, state: State, batch: _Batch) -> dict[str, Any]:
        """The input of the first step, read sample by sample."""
        every = []
        for place, (time, task) in enumerate(
            zip(batch.times, batch.tasks, strict=True)
        ):
            fields = {key: np.asarray(state[key][place]) for key in self.prognostic}
            data = replace(self.reader.data, state=_by_source(fields))
            reader = replace(self.reader, data=data)
            every.append(reader.at([time], [task], batch.perturb).arrays)
        return jax.tree.map(lambda *arrays: np.concatenate(arrays), *every)

    def _forcing(self, times: Sequence[np.datetime64], step: int) -> Any:
        return self.reader.forcing_at(times, step)

    def _check(self, state: State, count: int) -> None:
        grid = self.latitude.shape[0], self.longitude.shape[-1]
        for key, levels in self.prognostic.items():
            expected = (count, levels, self.history_len, *grid)
            actual = np.shape(state[key]) if key in state else None
            if actual != expected:
                raise ValueError(
                    f"state: {key} has shape {actual}, expected {expected}: (batch, "
                    "level, time, lat, lon)"
                )


@dataclass(frozen=True)
class _Batch:
    """The samples of a forecast.

    Attributes:
        times: labels of their start dates.
        tasks: their start dates and members, by number.
        perturb: changes the initial states of members; None changes nothing.
        noise: noise of models that draw noise; None for other models.
    """

    times: Sequence[np.datetime64]
    tasks: Sequence[Task]
    perturb: Perturb | None
    noise: MemberNoise | None

    @classmethod
    def of(
        cls,
        forecaster: StateForecaster,
        times: np.ndarray,
        members: Sequence[int] | None,
    ) -> _Batch:
        """The samples of `StateForecaster.forecast`."""
        labels = [date_label(time).to_datetime64() for time in times]
        members = [0] * len(labels) if members is None else members
        starts = np.unique(np.array(labels, "datetime64[ns]"))
        numbers = np.searchsorted(starts, np.array(labels, "datetime64[ns]"))
        tasks = [Task(int(n), int(m)) for n, m in zip(numbers, members, strict=True)]
        schedule = replace(
            forecaster.reader.schedule, starts=starts, num_members=max(members) + 1
        )
        seed = forecaster.config.seed
        noise = member_noise(seed, schedule, forecaster.step.model)
        inference = forecaster.config.inference or InferenceConfig()
        if schedule.num_members == 1:
            return cls(labels, tasks, None, noise)
        config = inference.perturbation
        if config.type in ("bred", "lagged"):
            raise ValueError(
                f"inference.perturbation.type: {config.type} needs states before the "
                "start date, which are not given; take gaussian or spherical, or "
                "credit-jax forecast"
            )
        grid = forecaster.latitude, forecaster.longitude
        perturb = noise_perturbation(config, seed, schedule, *grid)
        return cls(labels, tasks, perturb, noise)


def _by_source(fields: SourceFields) -> dict[str, SourceFields]:
    by_source: dict[str, SourceFields] = {}
    for key, field in fields.items():
        by_source.setdefault(key.split("/")[0], {})[key] = field
    return by_source


def load_forecaster(
    checkpoint: Package | RunWeights,
    data: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    parallelism: str = "data=none",
    devices: int | None = None,
    precision: str = "float32",
    matmul_precision: str = "highest",
) -> StateForecaster:
    """Builds the model of a package or a run on a mesh.

    Args:
        checkpoint: the package or the run, opened.
        data: path of the YAML file with the paths of dynamic forcing of a package, if
            it is in files.
        overrides: texts "KEY=VALUE" that replace values of the config.
        parallelism, devices: the mesh, and how many devices it has, as in `credit-jax
            forecast`.
        precision: dtype of activations.
        matmul_precision: see `trainer.matmul_precision`.

    Raises:
        ValueError: the mesh does not fit the model, forcing has no path, or the
            preblocks regrid the data, so that a state is not on the grid of the model.
    """
    is_package = isinstance(checkpoint, Package)
    like, unread = checkpoint.coordinates, [DIAGNOSTIC]
    # States are given; files of prognostic variables are opened for their grid and
    # levels where nothing else records them.
    if is_package:
        unread.append(_PROGNOSTIC)
        num_levels = _num_levels(checkpoint)
        config = checkpoint.config(overrides, data, unread=unread)
    else:
        sources = {} if like is None else like.sources
        num_levels = {
            k: len(source.levels) for k, source in sources.items() if source.levels
        }
        config = _config_of_run(checkpoint, data, overrides)
        listed = {k for k, source in config.data.source.items() if source.level_values}
        is_known = {*listed, *num_levels} >= config.data.source.keys()
        if like is not None and like.latitude is not None and is_known:
            unread.append(_PROGNOSTIC)
    inference = config.inference or InferenceConfig()
    section = inference.data or config.data
    requested = parse_parallelism(parallelism)
    chosen = forward_devices(requested, devices)
    plan = plan_model(
        config.model, requested, num_devices=len(chosen), where="parallelism"
    )
    policy = default_mp_policy(precision, matmul_precision=matmul_precision)
    model = plan.build(chosen, mp_policy=policy)
    pipeline = forecast_pipeline(config, inference)
    opened = open_forecast_data(
        section,
        [config.data.ranges[0][0]],
        1,
        unread=unread,
        num_levels=num_levels,
        like=like if inference.data is None else None,
        same_grid=pipeline.grid is None,
    )
    fields = {name: getattr(opened, name) for name in vars(opened)}
    order = {name: {} for name in section.source}
    state = GivenState(**fields, state=order)
    schema = forecast_schema(config, inference, model.model_def.config, pipeline, state)
    pipeline, latitude, longitude = _located(checkpoint, pipeline, opened)
    if is_package:
        groups = channel_groups(schema, opened.further)
        checkpoint.check_data(groups, latitude, longitude)
    else:
        checkpoint = replace(checkpoint, channels=schema.names)
    no_dates = np.array([], "datetime64[ns]")
    schedule = Schedule(no_dates, 1, opened.timestep, opened.calendar)
    reader = ForecastReader(state, pipeline, schedule, schema)
    # With more than one step, each makes the input of the next.
    step = ForecastStep(model, forecast_rollout(pipeline, schema, 2))
    weights = Forecaster(model, *checkpoint.restore(model)).weights
    return StateForecaster(
        checkpoint, config, schema, reader, step, weights, latitude, longitude
    )


def _config_of_run(
    run: RunWeights, data: str | Path | None, overrides: Sequence[str]
) -> Config:
    if data is not None:
        raise ValueError(
            f"data={str(data)!r} belongs to a package; {run.path} is of a run, whose "
            "config names its data: give overrides, such as "
            "'data.source.NAME.variables.KIND.path=PATTERN'"
        )
    return load_config(run.folder / CONFIG_NAME, overrides, forecasts=True)


def _located(
    checkpoint: Package | RunWeights, pipeline: Pipeline, opened: ForecastData
) -> tuple[Pipeline, np.ndarray, np.ndarray]:
    """The transforms at the grid of the data, and its latitudes and longitudes."""
    tree_schema, like = opened.schema.as_read(), checkpoint.coordinates
    if isinstance(checkpoint, Package):
        latitude, longitude = read_grid(checkpoint.path / GRID)
    elif like is not None and like.latitude is not None:
        latitude, longitude = np.array(like.latitude), np.array(like.longitude)
    else:
        latitude, longitude = opened.coordinates()
    where = str(checkpoint.path)
    grid = Axes(as_values(latitude), as_values(longitude), where=where)
    located = pipeline.at(tree_schema, grid)
    if located.grid is not None:
        raise ValueError(
            f"{where}: its preblocks regrid the data, and a state is on the grid of "
            "the model; forecast from files with credit-jax forecast"
        )
    return located, latitude, longitude


def _num_levels(package: Package) -> dict[str, int]:
    """Source -> levels of its 3-D variables."""
    num_levels: dict[str, int] = {}
    for key, count in order_of(package.channels["input"]):
        if "/3d/" in key:
            num_levels[key.split("/")[0]] = count
    return num_levels
