"""The members of a plan on the mesh of its model: their states, and their noise."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credit_jax.data.forecast_reader import FirstStep, ForecastReader
from credit_jax.data.perturbations import (
    PROGNOSTIC,
    Changes,
    Members,
    add,
    member_keys,
)
from credit_jax.data.schedule import ForecastSchedule, Task
from credit_jax.forecast.autoregression import ForecastStep
from credit_jax.forecast.forecaster import to_host
from credit_jax.forecast.outputs import Outputs
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.nn.noise import Noise
from credit_jax.parallel.placement import place_batch
from credit_jax.plan.forecast import ForecastPlan
from credit_jax.transforms import FieldTree

# Added to the numbers of steps before the start dates, for their noise.
_SPIN_UP = 2**30


@dataclass(frozen=True, eq=False)
class MemberNoise:
    """The noise inside a model: of each member by its key.

    Attributes:
        keys: (start, member, 2) uint32, of `member_keys`.
    """

    keys: np.ndarray

    def of(self, tasks: Sequence[Task]) -> Noise:
        """The noise of a batch; each step of a forecast folds in its number.

        Args:
            tasks: tasks of the batch, in all processes.
        """
        words = np.stack([self.keys[task.start, task.member] for task in tasks])
        return Noise(jax.random.wrap_key_data(jnp.asarray(words)))


def member_noise(
    seed: int, schedule: ForecastSchedule, model: ParallelModel
) -> MemberNoise | None:
    """The noise of the members of a schedule; None for models that draw none."""
    if not model.model_def.draws_noise:
        return None
    return MemberNoise(member_keys(seed, schedule))


def members_of(
    seed: int,
    reader: ForecastReader,
    grid: tuple[np.ndarray, np.ndarray],
    step: ForecastStep,
    weights: Any,
    noise: MemberNoise | None,
    run: tuple[Any, ...] | None = None,
) -> Members:
    """The forecasts of a model whose members are perturbed.

    Args:
        seed, reader, grid, run: see `Members`.
        step: step of the forecasts.
        weights: weights of the model.
        noise: noise of models that draw noise.
    """
    # Whole prognostic variables are returned.
    keys = reader.schema.target_slices()
    prognostic = {key: None for key in keys if key.split("/")[1] == PROGNOSTIC}
    step = replace(step, outputs=prognostic)
    advance = partial(_advance, step, weights, reader, noise)
    return Members(seed, reader, grid, advance, run)


def _advance(
    step: ForecastStep,
    weights: Any,
    reader: ForecastReader,
    noise: MemberNoise | None,
    first: FirstStep,
    starts: Sequence[np.datetime64],
    num_steps: Sequence[int],
    tasks: Sequence[Task],
    number: int,
) -> list[dict[str, np.ndarray]]:
    """Runs the model before the start dates, see `Advance`."""
    mesh, rows = step.model.mesh, step.model.model_def.image_height
    state, constants = step.start(place_batch(first.arrays, mesh))
    forcing: FieldTree = {}
    last, states = max(num_steps), []
    batch_noise = None if noise is None else noise.of(tasks)
    for k in range(1, last + 1):
        if k < last or not forcing:
            # Of each forecast that goes on after it; else any.
            steps = [min(k, count - 1) for count in num_steps]
            pairs = zip(starts, steps, strict=True)
            dates = [reader.data.time(*pair) for pair in pairs]
            forcing = place_batch(reader.forcing_at(dates, 0), mesh)
        # Step numbers of the forecasts are small.
        step_noise = batch_noise and batch_noise.fold_in(_SPIN_UP + number + k)
        state, fields = step(weights, state, constants, forcing, step_noise)
        states.append({k: to_host(x)[:, :, 0, :rows] for k, x in fields.items()})
    return states


def perturbed_reader(
    plan: ForecastPlan,
    step: ForecastStep,
    weights: Any,
    outputs: Outputs,
    noise: MemberNoise | None = None,
) -> ForecastReader:
    """The reader of a plan with the perturbations of its members.

    Args:
        plan: selects the perturbation and the members.
        step, weights, noise: see `members_of`.
        outputs: has the coordinates of the grid.
    """
    if plan.schedule.num_members == 1:
        return plan.reader
    grid = outputs.latitude, outputs.longitude
    seed, reader = plan.config.seed, plan.reader
    run = plan, step.model, weights, outputs
    members = members_of(seed, reader, grid, step, weights, noise, run)
    perturb = plan.perturbation.bind(members)
    if plan.perturbation.runs_model:
        perturb = PreparedPerturbation(perturb)
    return replace(reader, perturb=perturb)


@dataclass
class PreparedPerturbation:
    """A `Perturb` of changes that another thread computes, as they need the model.

    `prepare` is called with each group of tasks before it runs; the reading thread,
    which has the groups in the same order, waits for it.

    Attributes:
        make: computes what is added to the states of tasks.
        waited: seconds for which the reading thread waited for them.
    """

    make: Changes
    waited: float = 0.0
    _groups: SimpleQueue[Any] = field(default_factory=SimpleQueue)

    def prepare(self, tasks: Sequence[Task], retained: Sequence[Task]) -> None:
        """Makes the perturbations of a group.

        Args:
            tasks: the group, the same in every process.
            retained: those of this process.
        """
        changes = self.make(tasks)
        self._groups.put(
            {
                task: {key: x[index] for key, x in changes.items()}
                for index, task in enumerate(tasks)
                if task in retained
            }
        )

    def close(self) -> None:
        """Releases a waiting thread, which raises RuntimeError."""
        self._groups.put(None)

    def __call__(self, fields: FieldTree, tasks: Sequence[Task]) -> FieldTree:
        """Adds the perturbations of tasks when they are ready."""
        start = time.perf_counter()
        ready = self._groups.get()
        self.waited += time.perf_counter() - start
        if ready is None:
            raise RuntimeError("the campaign has ended")
        return add(fields, lambda key, index, _: ready[tasks[index]].get(key))
