"""Forecasts from held-out start dates at the end of a run, and their scores.

The forecasts are made on the mesh of the training and scored there; those of the last
start date are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
import xarray as xr

from credit_jax.config import Config
from credit_jax.config.dates import duration
from credit_jax.config.transforms import PostblocksConfig, TransformConfig
from credit_jax.data.calendars import shift_all
from credit_jax.data.dataset import Dataset
from credit_jax.evaluation.comparison import Comparison
from credit_jax.evaluation.grid_file import Variable
from credit_jax.evaluation.mesh_sums import Grid, MeshSums
from credit_jax.evaluation.offline import grid_of, layout_of
from credit_jax.evaluation.opening import ScoreOptions, open_comparison
from credit_jax.evaluation.regions import choose_regions
from credit_jax.evaluation.sums import ScoreSums
from credit_jax.inference import Forecaster
from credit_jax.inference.forecaster import to_host
from credit_jax.inference.outputs import Outputs
from credit_jax.inference.plan import ForecastPlan, plan_forecast
from credit_jax.inference.schedule import Task
from credit_jax.nn.noise import Noise
from credit_jax.training.setup import Setup
from credit_jax.training.state import TrainState

# Beyond it, evenly spaced start dates are taken.
MAX_STARTS = 60
# Of the forecasts that end the training of the demo; of others, one step.
DEMO_LENGTH = "5d"
# Step -> key -> (level, lat, lon), in physical units.
Kept = dict[int, dict[str, np.ndarray]]


def held_out_starts(dataset: Dataset, num_steps: int) -> tuple[np.ndarray, int]:
    """Start dates whose forecasts can be compared to the end, and their length.

    Args:
        dataset: of the held-out period.
        num_steps: wanted steps; fewer are taken where the period is shorter.
    """
    targets = [dataset.target_time(i) for i in range(len(dataset))]
    known = {*dataset.starts.tolist(), *np.array(targets, "datetime64[ns]").tolist()}
    starts, steps = dataset.starts, 0
    while steps < num_steps:
        length: Any = (steps + 1) * dataset.timestep
        ends = shift_all(starts, length, dataset.calendar).tolist()
        further = starts[[end in known for end in ends]]
        if not len(further):
            break
        starts, steps = further, steps + 1
    places = np.linspace(0, len(starts) - 1, min(len(starts), MAX_STARTS))
    return starts[places.round().astype(int)], steps


def plan_held_out(setup: Setup) -> ForecastPlan:
    """The plan of the forecasts.

    Raises:
        ConfigError: the transforms of the training cannot forecast.
    """
    config, loader = setup.config, setup.valid_loader
    assert loader is not None, "asked for by the caller"
    steps = 1
    if config.demo is not None:
        steps = max(1, int(duration(DEMO_LENGTH) / duration(config.data.timestep)))
    starts, steps = held_out_starts(loader.dataset, steps)
    overrides = {"data": config.validation_data, "postblocks": _postblocks(config)}
    return plan_forecast(
        config.model_copy(update={"inference": None}),
        config.trainer.parallelism,
        num_devices=setup.mesh.size,
        init_times=[str(time) for time in starts],
        num_steps=steps,
        overrides=overrides,
    )


def _postblocks(config: Config) -> PostblocksConfig:
    """Those of the training, which names the fields of predictions first of all."""
    section = config.postblocks
    kinds = [
        (block.type, block.args.get("in_key", "y_pred"))
        for block in section.per_step.values()
    ]
    if ("reconstruct", "y_pred") in kinds:
        return section
    first = {"reconstruct_predictions": TransformConfig(type="reconstruct")}
    return section.model_copy(update={"per_step": {**first, **section.per_step}})


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Forecasts on the mesh of the training.

    Attributes:
        setup: of the run.
        plan: of the forecasts.
    """

    setup: Setup
    plan: ForecastPlan

    @cached_property
    def outputs(self) -> Outputs:
        """The fields of a step: all that are predicted."""
        return self.plan.outputs(self.setup.valid_model)

    def score(self, state: TrainState) -> tuple[xr.Dataset, Kept]:
        """Makes the forecasts.

        Args:
            state: with the weights.

        Returns:
            Their scores, and the fields of the last start date, from step 0 on.
        """
        total, kept = None, {}
        for own, fields in self._groups(state):
            total = own if total is None else total.merge(own)
            kept = fields
        assert total is not None, "there is at least one start date"
        schedule = self.plan.schedule
        leads = [schedule.lead(k) for k in range(1, schedule.num_steps + 1)]
        lead = np.array([own.to_timedelta64() for own in leads], "timedelta64[ns]")
        layout = layout_of(self._comparison, self._grid, lead, 1)
        return layout.scores(total, self._attributes), kept

    def _groups(self, state: TrainState) -> Iterator[tuple[ScoreSums, Kept]]:
        """Start dates that run side by side: their sums, the last one's fields."""
        model, plan = self.setup.valid_model, self.plan
        size = self.setup.config.trainer.valid_batch_size * model.axes.num_data
        groups = plan.schedule.groups(size)
        full = [[*own, *[own[-1]] * (size - len(own))] for own in groups]
        measure = MeshSums(model.mesh, self._grid, size, 1, self._compared)
        forecaster = Forecaster(model, state.evaluation_params, state.model_state)
        step = plan.step(model, self.outputs)
        num_steps = plan.schedule.num_steps
        reader = plan.reader.stream(full, num_steps, model.mesh)
        for group, tasks in zip(groups, full, strict=True):
            first = next(reader)
            current, constants = step.start(first.arrays)
            last, sums = len(group) - 1, []
            kept: Kept = {0: {k: x[last] for k, x in first.fields.items()}}
            forcing: Any = {}
            for number in range(1, num_steps + 1):
                if number < num_steps:
                    forcing = next(reader)
                noise = Noise(jax.random.key(number))
                given = (forecaster.weights, current, constants, forcing, noise)
                current, found = step(*given)
                placed = measure.place(self._references(tasks, number))
                sums.append(measure.to_host(measure(found, placed)))
                if group[-1] == plan.schedule.tasks[-1]:
                    kept[number] = {k: self._of(x, last) for k, x in found.items()}
            yield self._merged(group, sums), kept

    def _merged(
        self, group: list[Task], sums: list[dict[str, np.ndarray]]
    ) -> ScoreSums:
        total = None
        for place, task in enumerate(group):
            leads = [{name: x[place] for name, x in own.items()} for own in sums]
            start = self.plan.schedule.starts[task.start]
            own = ScoreSums.of_start(start, leads)
            total = own if total is None else total.merge(own)
        assert total is not None, "groups are not empty"
        return total

    def _references(self, tasks: list[Task], step: int) -> dict[str, np.ndarray]:
        """Truth, persistence and climatology of some start dates at a step."""
        schedule, comparison = self.plan.schedule, self._comparison
        found: dict[str, list[np.ndarray]] = {}
        for task in tasks:
            start = schedule.starts[task.start]
            fields = comparison.at(schedule.valid_time(task.start, step))
            for name, own in (fields | comparison.persistence(start)).items():
                found.setdefault(name, []).append(own)
        return {name: np.stack(own) for name, own in found.items()}

    def _of(self, field: jax.Array, place: int) -> np.ndarray:
        """One forecast of a step's output, without padding rows."""
        return to_host(field)[place, :, 0, : len(self.outputs.latitude)]

    @cached_property
    def _compared(self) -> Mapping[str, tuple[int, ...] | None]:
        keys = {own.name: own.key for own in self.outputs.variables}
        return {keys[k]: levels for k, levels in self._comparison.forecast.items()}

    @cached_property
    def _comparison(self) -> Comparison:
        schedule, config = self.plan.schedule, self.setup.config
        variables = {
            own.name: Variable(None if own.levels is None else own.levels.astype(float))
            for own in self.outputs.variables
        }
        times = [
            schedule.valid_time(start, step)
            for start in range(len(schedule.starts))
            for step in range(schedule.num_steps + 1)
        ]
        options = ScoreOptions(config.validation_data, None, config.data)
        grid = self.outputs.latitude, self.outputs.longitude
        return open_comparison(options, variables, grid, np.unique(times))

    @cached_property
    def _grid(self) -> Grid:
        latitude, longitude = self.outputs.latitude, self.outputs.longitude
        return grid_of(latitude, longitude, choose_regions())

    @property
    def _attributes(self) -> dict[str, Any]:
        climatology = self._comparison.climatology
        return {
            "title": "forecasts from held-out start dates at the end of the training",
            "forecast": self.setup.config.save_loc,
            "truth": "the held-out period of the data section",
            "climatology": "none" if climatology is None else climatology.where,
            "weights": "cos(latitude)",
            "credit_jax": version("credit-jax"),
        }
