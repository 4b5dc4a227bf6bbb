"""Scores of forecasts, computed on the devices while the forecasts are made.

The area sums of each start date are saved in a file next to the record of the campaign.
Scores are computed from all files in the order of the dates, so that they depend
neither on how a campaign was split into jobs nor on where it was interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Array

from credit_jax.data.calendars import shift_all
from credit_jax.data.schedule import ForecastSchedule, Task
from credit_jax.evaluation.comparison import ScoreComparison
from credit_jax.evaluation.mesh_sums import MeshSums
from credit_jax.evaluation.offline import dims_of_scores, grid_of
from credit_jax.evaluation.opening import ScoreOptions, open_comparison
from credit_jax.evaluation.regions import Region
from credit_jax.evaluation.sums import ScoreDims, ScoreSums
from credit_jax.forecast.outputs import Outputs
from credit_jax.io.errors import write_errors
from credit_jax.models.parallel_model import ParallelModel

FOLDER = "sums"


@dataclass(frozen=True, eq=False)
class OnlineScores:
    """The scores of a campaign.

    Attributes:
        measure: computes the sums of the forecasts of a batch.
        comparison: reference fields of the scores.
        dims: dims of the scores.
        schedule: schedule of the forecasts.
        folder: folder of the sums of each start date.
    """

    measure: MeshSums
    comparison: ScoreComparison
    dims: ScoreDims
    schedule: ForecastSchedule
    folder: Path

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
        """Writes the sums of the start dates of some tasks, unless they exist.

        All processes have the sums; the first one writes them.

        Args:
            tasks: those of a group, without padding.
            steps: area sums of the group at each written step.
        """
        members = self.schedule.num_members
        if jax.process_index() > 0:
            return
        for index, task in enumerate(tasks[::members]):
            if self._path(task.start).exists():
                continue
            leads = [{name: x[index] for name, x in sums.items()} for sums in steps]
            start = self.schedule.starts[task.start]
            with write_errors(self.folder):
                ScoreSums.of_start(start, leads).save(self._path(task.start))

    def scores(self, attributes: Mapping[str, Any]) -> xr.Dataset | None:
        """The scores of all start dates that are done; None if there is none.

        Args:
            attributes: attributes of the data set.
        """
        total: ScoreSums | None = None
        for start in range(len(self.schedule.starts)):
            if self._path(start).exists():
                start_sums = ScoreSums.load(self._path(start))
                total = start_sums if total is None else total.merge(start_sums)
        return None if total is None else self.dims.scores(total, attributes)

    def _path(self, start: int) -> Path:
        name = str(self.schedule.starts[start])[:16].replace(":", "")
        return self.folder / FOLDER / f"{name}.npz"


@dataclass
class GroupScores:
    """Collects the area sums of a group of forecasts.

    Attributes:
        scores: scores of the campaign.
        references: reference fields of every written step, in order.
        tasks: tasks of the group, without padding.
    """

    scores: OnlineScores
    references: Iterator[Any]
    tasks: Sequence[Task]
    _steps: list[dict[str, np.ndarray]] = field(default_factory=list)

    def start(self, fields: Mapping[str, Array]) -> Any:
        """Starts the sums of the next written step on the devices."""
        return self.scores.measure(fields, next(self.references))

    def take(self, sums: Any) -> None:
        """Copies sums to the host."""
        self._steps.append(self.scores.measure.to_host(sums))

    def save(self) -> None:
        """Writes the sums of all steps."""
        self.scores.save(self.tasks, self._steps)


def online_scores(
    options: ScoreOptions,
    regions: tuple[Region, ...],
    schedule: ForecastSchedule,
    model: ParallelModel,
    outputs: Outputs,
    size: int,
    folder: Path,
) -> OnlineScores:
    """Prepares the scores of a campaign; only fields for the climatology are read.

    Args:
        options: truth, climatology and variables of the comparison.
        regions: regions of the scores.
        schedule: schedule of the forecasts.
        model: model on its mesh.
        outputs: the variables that a step returns.
        size: forecasts of a batch on the mesh.
        folder: folder of the campaign.

    Raises:
        FileNotFoundError, ValueError: data for the comparison are missing.
    """
    grid = grid_of(outputs.latitude, outputs.longitude, regions)
    keys = {variable.name: variable.key for variable in outputs.variables}
    MeshSums(model.mesh, grid, size, schedule.num_members)
    comparison = open_comparison(options, outputs.table, _times(schedule))
    channels = {keys[name]: x for name, x in comparison.to_truth.levels.items()}
    measure = MeshSums(model.mesh, grid, size, schedule.num_members, channels)
    leads = [schedule.lead(step).to_timedelta64() for step in schedule.written]
    dims = dims_of_scores(comparison, grid, np.array(leads), schedule.num_members)
    return OnlineScores(measure, comparison, dims, schedule, folder)


def _times(schedule: ForecastSchedule) -> np.ndarray:
    """All start dates and valid times of written steps."""
    steps = [step * schedule.timestep for step in schedule.written]
    times = [shift_all(schedule.starts, step, schedule.calendar) for step in steps]
    return np.unique(np.concatenate([schedule.starts, *times]))
