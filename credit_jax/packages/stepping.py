"""Forecasts of a package from arrays, step by step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from credit_jax.config.dates import date_label
from credit_jax.config.inference import InferenceConfig
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.data.channels import ChannelSchema
from credit_jax.data.sources.source import Fields
from credit_jax.fields.coordinates import Axes, as_values
from credit_jax.inference.autoregression import ForecastStep
from credit_jax.inference.forecast_data import (
    DIAGNOSTIC,
    GivenState,
    open_forecast_data,
)
from credit_jax.inference.forecaster import Forecaster
from credit_jax.inference.plan import (
    forecast_pipeline,
    forecast_rollout,
    forecast_schema,
)
from credit_jax.inference.reading import ForecastReader
from credit_jax.inference.schedule import Schedule
from credit_jax.packages.channels import channel_groups, order_of
from credit_jax.packages.grids import read_grid
from credit_jax.packages.manifest import GRID
from credit_jax.packages.package import Package
from credit_jax.parallel.mesh.devices import forward_devices
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.parallel.placement import place_batch
from credit_jax.plan import plan_model

_PROGNOSTIC = "prognostic"
# Key -> field (batch, level, lat, lon), physical units, float32.
State = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class PackageForecaster:
    """A package on a mesh, as a function from states to forecasts.

    Static fields are those of the package; dynamic forcing is read or computed from its
    sources.

    Attributes:
        package: opened.
        schema: channels of x and y.
        reader: makes the input of the model from prognostic variables and forcing.
        step: of the model.
        weights: on the mesh.
        latitude, longitude: of the grid, degrees.
    """

    package: Package
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
        self, state: State, times: np.ndarray
    ) -> Iterator[dict[str, jax.Array]]:
        """Yields the steps after some states, one after another, without end.

        Args:
            state: key -> (batch, level, history_len, lat, lon), physical units, of
                every prognostic variable.
            times: (batch,) datetime64 of the newest fields of each sample.

        Yields:
            Key -> (batch, level, lat, lon) of every predicted variable, float32, in
            physical units, on the mesh.

        Raises:
            ValueError: fields are missing or have another shape, or the forcing of a
                time cannot be read.
        """
        self._check(state, len(times))
        mesh = self.step.model.mesh
        carried, constants = self.step.start(
            place_batch(self._first(state, times), mesh)
        )
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
            carried, fields = self.step(self.weights, carried, constants, placed)
            rows = self.step.model.model_def.image_height
            yield {key: field[:, :, 0, :rows] for key, field in fields.items()}

    def _first(self, state: State, times: np.ndarray) -> dict[str, Any]:
        """The input of the first step, read sample by sample."""
        every = []
        for place, time in enumerate(times):
            own = {key: np.asarray(state[key][place]) for key in self.prognostic}
            data = replace(self.reader.data, state=_by_source(own))
            reader = replace(self.reader, data=data)
            every.append(reader.at([_label(time)]).arrays)
        return jax.tree.map(lambda *arrays: np.concatenate(arrays), *every)

    def _forcing(self, times: np.ndarray, step: int) -> Any:
        return self.reader.forcing_at([_label(time) for time in times], step)

    def _check(self, state: State, count: int) -> None:
        grid = self.latitude.shape[0], self.longitude.shape[-1]
        for key, levels in self.prognostic.items():
            wanted = (count, levels, self.history_len, *grid)
            found = np.shape(state[key]) if key in state else None
            if found != wanted:
                raise ValueError(
                    f"state: {key} has shape {found}, expected {wanted}: (batch, "
                    "level, time, lat, lon)"
                )


def _label(time: Any) -> np.datetime64:
    return date_label(time).to_datetime64()


def _by_source(fields: Fields) -> dict[str, Fields]:
    found: dict[str, Fields] = {}
    for key, field in fields.items():
        found.setdefault(key.split("/")[0], {})[key] = field
    return found


def load_forecaster(
    package: Package,
    data: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    parallelism: str = "data=none",
    precision: str = "float32",
    matmul_precision: str = "highest",
) -> PackageForecaster:
    """Builds the model of a package on a mesh.

    Args:
        package: opened.
        data: YAML file with the paths of dynamic forcing, if it is in files.
        overrides: texts "KEY=VALUE" that replace values of the config.
        parallelism: the mesh, as in `credit-jax forecast --parallelism`.
        precision: dtype of activations.
        matmul_precision: see `trainer.matmul_precision`.

    Raises:
        ValueError: the mesh does not fit the model, or forcing has no path.
    """
    unread = (DIAGNOSTIC, _PROGNOSTIC)
    config = package.config(overrides, data, unread=unread)
    inference = config.inference or InferenceConfig()
    section = inference.data or config.data
    wanted = parse_parallelism(parallelism)
    devices = forward_devices(wanted)
    plan = plan_model(
        config.model, wanted, num_devices=len(devices), where="parallelism"
    )
    policy = default_mp_policy(precision, matmul_precision=matmul_precision)
    model = plan.build(devices, mp_policy=policy)
    pipeline = forecast_pipeline(config, inference)
    opened = open_forecast_data(
        section,
        [config.data.ranges[0][0]],
        1,
        unread=unread,
        num_levels=_num_levels(package),
        like=package.coordinates if inference.data is None else None,
        same_grid=pipeline.grid is None,
    )
    fields = {name: getattr(opened, name) for name in vars(opened)}
    order = {name: {} for name in section.source}
    given = GivenState(**fields, state=order)
    schema = forecast_schema(config, inference, model.model_def.config, pipeline, given)
    latitude, longitude = read_grid(package.path / GRID)
    grid = Axes(as_values(latitude), as_values(longitude), where=str(package.path))
    pipeline = pipeline.at(opened.schema.as_read(), grid)
    package.check_data(channel_groups(schema, opened.further), latitude, longitude)
    schedule = Schedule(np.array([], "datetime64[ns]"), 1, opened.timestep)
    reader = ForecastReader(given, pipeline, schedule, schema)
    # With more than one step, each makes the input of the next.
    step = ForecastStep(model, forecast_rollout(pipeline, schema, 2))
    weights = Forecaster(model, *package.restore(model)).weights
    return PackageForecaster(
        package, schema, reader, step, weights, latitude, longitude
    )


def _num_levels(package: Package) -> dict[str, int]:
    """Source -> levels of its 3-D variables."""
    found: dict[str, int] = {}
    for key, count in order_of(package.channels["input"]):
        if "/3d/" in key:
            found[key.split("/")[0]] = count
    return found
