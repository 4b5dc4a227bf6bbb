"""Perturbations computed with the model: bred vectors and lagged starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from credit_jax.data.forecast_reader import FirstStep, ForecastReader
from credit_jax.data.schedule import Task
from credit_jax.forecast.autoregression import ForecastStep
from credit_jax.forecast.forecaster import to_host
from credit_jax.forecast.perturbation import (
    PROGNOSTIC,
    Amplitude,
    MemberNoise,
    NoisePerturbation,
    add,
)
from credit_jax.parallel.placement import place_batch
from credit_jax.transforms import FieldTree

# Key -> (batch, level, lat, lon).
HostFields = dict[str, np.ndarray]
# Added to the numbers of steps before the start dates, for their noise.
_SPIN_UP = 2**30


@dataclass(frozen=True)
class SpinUp:
    """Runs the model before the start dates.

    Attributes:
        step: the compiled step; it returns every prognostic variable.
        weights: weights of the model.
        reader: reader of states and forcing, without perturbations.
        noise: noise of models that draw noise.
    """

    step: ForecastStep
    weights: Any
    reader: ForecastReader
    noise: MemberNoise | None = None

    def dates(self, tasks: Sequence[Task], steps: Sequence[int]) -> list[np.datetime64]:
        """The date a number of steps after the start of each task."""
        schedule = self.reader.schedule
        return [
            schedule.valid_time(t.start, k) for t, k in zip(tasks, steps, strict=True)
        ]

    def advance(
        self,
        first: FirstStep,
        starts: Sequence[np.datetime64],
        num_steps: Sequence[int],
        tasks: Sequence[Task],
        number: int = 0,
    ) -> list[HostFields]:
        """Prognostic fields after each step of forecasts from some states and dates.

        Args:
            first: the states.
            starts: their dates.
            num_steps: number of steps of each forecast; what follows in a shorter one
                has no meaning.
            tasks: tasks for which they are made.
            number: number of the first step, among all before the start dates.
        """
        mesh = self.step.model.mesh
        state, constants = self.step.start(place_batch(first.arrays, mesh))
        forcing: FieldTree = {}
        last, states = max(num_steps), []
        noise = None if self.noise is None else self.noise.of(tasks)
        for k in range(1, last + 1):
            if k < last or not forcing:
                forcing = place_batch(self._forcing(starts, num_steps, k), mesh)
            # Step numbers of the forecasts are small.
            step_noise = None if noise is None else noise.fold_in(_SPIN_UP + number + k)
            state, fields = self.step(
                self.weights, state, constants, forcing, step_noise
            )
            rows = self.step.model.model_def.image_height
            states.append({k: to_host(x)[:, :, 0, :rows] for k, x in fields.items()})
        return states

    def _forcing(
        self, starts: Sequence[np.datetime64], num_steps: Sequence[int], step: int
    ) -> FieldTree:
        """Forcing of a step, of each forecast that goes on after it; else any."""
        steps = [min(step, count - 1) for count in num_steps]
        dates = [
            self.reader.data.time(*pair) for pair in zip(starts, steps, strict=True)
        ]
        return self.reader.forcing_at(dates, 0)


@dataclass(frozen=True)
class BredVectors:
    """Bred vectors: differences of forecasts, grown and rescaled in cycles.

    Noise is added to the analysis `num_cycles` steps before the start date. Each cycle
    runs one step from the analysis and one from the perturbed analysis; their
    difference, rescaled variable by variable, is added to the next analysis.

    Attributes:
        spin_up: runs the model.
        noise: initial perturbation.
        amplitude: amplitude to which differences are rescaled.
        num_cycles: number of cycles, of one step each.
    """

    spin_up: SpinUp
    noise: NoisePerturbation
    amplitude: Amplitude
    num_cycles: int

    def __call__(self, tasks: Sequence[Task]) -> Mapping[str, np.ndarray]:
        """Key -> (batch, level, lat, lon), what is added to the initial states."""
        spin_up, bred = self.spin_up, HostFields()
        for cycle in range(-self.num_cycles, 0):
            dates = spin_up.dates(tasks, [cycle] * len(tasks))
            perturb = partial(add_changes, bred) if bred else self.noise
            base = spin_up.reader.at(dates)
            other = spin_up.reader.at(dates, tasks, perturb)
            ones, number = [1] * len(tasks), cycle + self.num_cycles
            (control,) = spin_up.advance(base, dates, ones, tasks, number)
            (changed,) = spin_up.advance(other, dates, ones, tasks, number)
            bred = {
                key: self._scaled(key, changed[key] - field, base.fields[key], tasks)
                for key, field in control.items()
            }
        return bred

    def _scaled(
        self, key: str, difference: np.ndarray, base: np.ndarray, tasks: Sequence[Task]
    ) -> np.ndarray:
        """Differences with the amplitude of their variable; none for member 0."""
        scaled = np.zeros_like(difference)
        for index, task in enumerate(tasks):
            std = self.amplitude.of(key, base[index])
            size = self.amplitude.rms(difference[index])
            if std is not None and task.member > 0:
                factor = np.divide(std, size, out=np.zeros_like(std), where=size > 0)
                scaled[index] = difference[index] * factor
        return scaled


@dataclass(frozen=True)
class LaggedStarts:
    """Lagged starts: member m starts from the forecast begun m lags earlier.

    Attributes:
        spin_up: runs the model.
        steps: number of steps of a lag.
    """

    spin_up: SpinUp
    steps: int

    def __call__(self, tasks: Sequence[Task]) -> Mapping[str, np.ndarray]:
        """Key -> (batch, level, lat, lon), what is added to the initial states."""
        spin_up = self.spin_up
        lags = [self.steps * task.member for task in tasks]
        dates = spin_up.dates(tasks, [-lag for lag in lags])
        analysis = spin_up.reader.at(spin_up.dates(tasks, [0] * len(tasks))).fields
        if not any(lags):
            return {}
        steps = [max(lag, 1) for lag in lags]
        advanced = spin_up.advance(spin_up.reader.at(dates), dates, steps, tasks)
        return {
            key: np.stack(
                [
                    advanced[lag - 1][key][index] - analysis[key][index]
                    if lag
                    else np.zeros_like(analysis[key][index])
                    for index, lag in enumerate(lags)
                ]
            )
            for key in advanced[0]
        }


def prognostic(step: ForecastStep, keys: Sequence[str]) -> ForecastStep:
    """A step that returns whole prognostic variables."""
    selection = {key: None for key in keys if key.split("/")[1] == PROGNOSTIC}
    return replace(step, outputs=selection)


def add_changes(
    changes: Mapping[str, np.ndarray], fields: FieldTree, tasks: Sequence[Task]
) -> FieldTree:
    """Adds changes, key -> (batch, level, lat, lon), to the fields of their samples."""
    del tasks  # A `Perturb` is called with them.
    return add(
        fields, lambda key, place, _: changes[key][place] if key in changes else None
    )
