"""Singular vectors as the initial perturbations of ensemble members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from credit_jax.adjoint.growth import (
    area_weights,
    energy_factors,
    singular_vectors,
)
from credit_jax.adjoint.maps import ForecastMap, map_of_reader
from credit_jax.data.schedule import Task, steps_of
from credit_jax.forecast.outputs import Outputs
from credit_jax.forecast.perturbation import Amplitude
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.plan.forecast import ForecastPlan


@dataclass(eq=False)
class SingularMembers:
    """Perturbations by singular vectors: tasks -> what is added to their states.

    Vector k, from 0, is added to member 2 k + 1 and subtracted from member 2 k + 2. The
    size of a perturbation, 1, is the mean over the perturbed variables, their levels
    and the area of squares in units of the amplitude of each variable and level. This
    is the norm, at the start and at the end, too, unless that is the energy. The
    vectors of a start date are computed once for all members that follow one another.

    Attributes:
        plan: selects number, lead and amplitude of the vectors.
        model: model on its mesh.
        weights: weights of `Forecaster.weights`.
        outputs: variables and coordinates of the forecasts.
    """

    plan: ForecastPlan
    model: ParallelModel
    weights: Any
    outputs: Outputs
    _map: ForecastMap | None = None
    _vectors: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)

    def __call__(self, tasks: Sequence[Task]) -> Mapping[str, np.ndarray]:
        """Key -> (batch, level, lat, lon), what is added to the initial states.

        Raises:
            ValueError: no variable can be perturbed.
        """
        starts = dict.fromkeys(task.start for task in tasks)
        self._vectors = {
            start: self._vectors[start]
            if start in self._vectors
            else self.vectors(start)
            for start in starts
        }
        keys = dict.fromkeys(key for start in starts for key in self._vectors[start])
        return {
            key: np.stack([self._change(task, key) for task in tasks]) for key in keys
        }

    def _change(self, task: Task, key: str) -> np.ndarray:
        vectors = self._vectors[task.start]
        if key not in vectors or task.member == 0:
            assert self._map is not None, "made with the first vectors"
            return np.zeros_like(self._map.state[key][0, :, 0])
        number, odd = divmod(task.member - 1, 2)
        return -vectors[key][number] if odd else vectors[key][number]

    def vectors(self, start: int) -> dict[str, np.ndarray]:
        """Key -> (vector, level, lat, lon) of a start date, of size 1.

        Args:
            start: number of the start date.
        """
        plan, config = self.plan, self.plan.inference.perturbation
        copies = self.model.axes.num_data
        forecast = map_of_reader(
            self.model,
            self.weights,
            plan.reader,
            [plan.schedule.starts[start]] * copies,
            [Task(start, 0)] * copies,
            None,
            steps_of(
                config.lead, plan.schedule.timestep, "inference.perturbation.lead"
            ),
        )
        if self._map is None:
            self._map = forecast
        forecast.compiled_as(self._map)
        size = self._size(forecast.state)
        norm = size if config.norm == "deviation" else self._energy(forecast, size)
        vectors = singular_vectors(forecast, forecast.state, config.vectors, norm)
        initial = {key: x[:, :, 0] for key, x in vectors.initial.items()}
        factors = np.array([_factor(initial, size, k) for k in range(config.vectors)])
        return {key: x * factors[:, None, None, None] for key, x in initial.items()}

    def _energy(
        self, forecast: ForecastMap, usable: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Key -> (level, lat, lon) weights of the energy of the perturbed variables."""
        where = "inference.perturbation.norm: energy"
        instead = "take norm: deviation"
        factors = energy_factors(self.outputs, usable, where, instead)
        return area_weights(forecast.state, self.outputs.latitude, factors)

    def _size(self, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Key -> (level, lat, lon) weights of squares of the perturbed variables."""
        std, latitude = self.plan.inference.perturbation.std, self.outputs.latitude
        amplitude = Amplitude(std, latitude)
        sizes = {key: amplitude.of(key, x[0, :, 0]) for key, x in state.items()}
        # A constant level has no deviation in units of which it could change.
        usable = {
            key: size
            for key, size in sizes.items()
            if size is not None and (size > 0).all() and np.isfinite(size).all()
        }
        if not usable:
            raise ValueError(
                "inference.perturbation.std: no variable can be perturbed by singular "
                "vectors: each has a level without deviation, or with missing values; "
                "take another type"
            )
        share = dict.fromkeys(usable, 1 / len(usable))
        weights = area_weights(state, latitude, share)
        return {key: weights[key] / size**2 for key, size in usable.items()}


def _factor(
    initial: Mapping[str, np.ndarray], size: Mapping[str, np.ndarray], number: int
) -> np.float32:
    """The factor that makes a vector's size 1, and its largest value positive."""
    values = np.concatenate(
        [(np.sqrt(size[key]) * x[number]).ravel() for key, x in initial.items()]
    )
    sign = np.sign(values[np.abs(values).argmax()])
    return np.float32(sign / np.linalg.norm(values))
