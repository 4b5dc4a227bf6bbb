"""The members of a plan on its mesh: states, noise, scores during the forecast.

The area sums of each start date are saved in a file next to the record of the campaign.
Scores are computed from all files in the order of the dates, so that they depend
neither on how a campaign was split into jobs nor on where it was interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr

from credit_jax.data.calendars import shift_all
from credit_jax.data.forecast_data import FirstStep, ForecastReader
from credit_jax.data.perturbations import PROGNOSTIC, Changes, Members, add, member_keys
from credit_jax.data.schedule import ForecastSchedule, Task
from credit_jax.evaluation.comparison import ScoreComparison
from credit_jax.evaluation.mesh_sums import MeshSums
from credit_jax.evaluation.opening import (
    ScoreOptions,
    dims_of_scores,
    grid_of,
    open_comparison,
)
from credit_jax.evaluation.regions import Region
from credit_jax.evaluation.sums import (
    ScoreDims,
    ScoreSums,
    merged_sums,
    path_of_sums,
)
from credit_jax.forecast.autoregression import ForecastStep
from credit_jax.forecast.forecaster import to_host
from credit_jax.forecast.outputs import Outputs
from credit_jax.io.errors import write_errors
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.nn.context import Noise
from credit_jax.parallel.placement import place_batch
from credit_jax.transforms import FieldTree

# Added to the numbers of steps before the start dates, for their noise.
_SPIN_UP = 2**30


@dataclass(frozen=True, eq=False)
class MemberNoise:
    """The noise inside a model: of each member by its key."""

    keys: np.ndarray  # (start, member, 2) uint32, of `member_keys`

    def of(self, tasks: Sequence[Task]) -> Noise:
        """The noise of a batch, in all processes; steps fold in their numbers."""
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
    """The forecasts of a model whose members are perturbed."""
    # Whole prognostic variables are returned.
    keys = reader.schema.target_slices()
    prognostic = {key: None for key in keys if key.split("/")[1] == PROGNOSTIC}
    step = replace(step, outputs=prognostic)
    mesh, rows = step.model.mesh, step.model.model_def.image_height

    def advance(
        first: FirstStep,
        starts: Sequence[np.datetime64],
        num_steps: Sequence[int],
        tasks: Sequence[Task],
        number: int,
    ) -> list[dict[str, np.ndarray]]:
        """Runs the model before the start dates, see `Advance`."""

        def forcing() -> Iterator[FieldTree]:
            placed: FieldTree = {}
            for k in range(1, max(num_steps) + 1):
                if k < max(num_steps) or not placed:
                    # Of each forecast that goes on after it; else any.
                    steps = [min(k, count - 1) for count in num_steps]
                    pairs = zip(starts, steps, strict=True)
                    dates = [reader.data.time(*pair) for pair in pairs]
                    placed = place_batch(reader.forcing_at(dates, 0), mesh)
                yield placed

        arrays = place_batch(first.arrays, mesh)
        # Step numbers of the forecasts are small.
        drawn, number = noise and noise.of(tasks), _SPIN_UP + number
        return [
            {key: to_host(x)[:, :, 0, :rows] for key, x in fields.items()}
            for fields in step.steps(weights, arrays, forcing(), drawn, number)
        ]

    return Members(seed, reader, grid, advance, run)


@dataclass
class PreparedPerturbation:
    """A `Perturb` of changes that another thread computes, as they need the model."""

    make: Changes  # computes what is added to the states of tasks
    waited: float = 0.0  # seconds for which the reading thread waited for them
    _groups: SimpleQueue[Any] = field(default_factory=SimpleQueue)

    def prepare(self, tasks: Sequence[Task], retained: Sequence[Task]) -> None:
        """Makes the perturbations of a group; `retained` are of this process."""
        # Before each group runs; the reading thread, which has the groups in the same
        # order, waits for it.
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


FOLDER = "sums"


@dataclass(frozen=True, eq=False)
class OnlineScores:
    """The scores of a campaign."""

    measure: MeshSums  # computes the sums of the forecasts of a batch
    comparison: ScoreComparison
    dims: ScoreDims
    schedule: ForecastSchedule
    folder: Path  # folder of the sums of each start date

    def stream(self, groups: Sequence[Sequence[Task]]) -> Iterator[Any]:
        """Yields the reference fields of each written step of groups, on the mesh."""
        members = self.schedule.num_members
        for tasks in groups:
            starts = [task.start for task in tasks[::members]]
            dates = [self.schedule.starts[start] for start in starts]
            persistence = [self.comparison.persistence(date) for date in dates]
            for step in self.schedule.written:
                times = [self.schedule.valid_time(start, step) for start in starts]
                fields = [
                    reference | self.comparison.at(time)
                    for reference, time in zip(persistence, times, strict=True)
                ]
                names = fields[0]
                stacked = {
                    k: np.stack([reference[k] for reference in fields]) for k in names
                }
                yield self.measure.place(stacked)

    def save(
        self, tasks: Sequence[Task], steps: Sequence[Mapping[str, np.ndarray]]
    ) -> None:
        """Writes the sums of the start dates of a group, unless they exist."""
        members = self.schedule.num_members
        # All processes have the sums of each written step.
        if jax.process_index() > 0:
            return
        for index, task in enumerate(tasks[::members]):
            start = self.schedule.starts[task.start]
            if (path := path_of_sums(self.folder / FOLDER, start)).exists():
                continue
            leads = [{name: x[index] for name, x in sums.items()} for sums in steps]
            with write_errors(self.folder):
                ScoreSums.of_start(start, leads).save(path)

    def scores(self, attributes: Mapping[str, Any]) -> xr.Dataset | None:
        """The scores of all start dates that are done; None if there is none."""
        total = merged_sums(self.folder / FOLDER, self.schedule.starts)
        return None if total is None else self.dims.scores(total, attributes)


def online_scores(
    options: ScoreOptions,
    regions: tuple[Region, ...],
    schedule: ForecastSchedule,
    model: ParallelModel,
    outputs: Outputs,
    size: int,
    folder: Path,
) -> OnlineScores:
    """The scores of batches of `size`; only fields for the climatology are read."""
    grid = grid_of(outputs.latitude, outputs.longitude, regions)
    keys = {variable.name: variable.key for variable in outputs.variables}
    MeshSums(model.mesh, grid, size, schedule.num_members)
    # All start dates and valid times of written steps.
    steps = [step * schedule.timestep for step in schedule.written]
    times = [shift_all(schedule.starts, step, schedule.calendar) for step in steps]
    times = np.unique(np.concatenate([schedule.starts, *times]))
    comparison = open_comparison(options, outputs.table, times)
    channels = {keys[name]: x for name, x in comparison.to_truth.levels.items()}
    measure = MeshSums(model.mesh, grid, size, schedule.num_members, channels)
    leads = [schedule.lead(step).to_timedelta64() for step in schedule.written]
    dims = dims_of_scores(comparison, grid, np.array(leads), schedule.num_members)
    return OnlineScores(measure, comparison, dims, schedule, folder)
