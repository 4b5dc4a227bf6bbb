"""Forecasts from held-out start dates at the end of a run, and their scores.

The forecasts are made on the mesh of the training and scored there; those of the last
start date are kept.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import jax
import numpy as np
import xarray as xr

from credit_jax.config import dump_config
from credit_jax.config.dates import duration
from credit_jax.config.inference import InferenceConfig
from credit_jax.data import Dataset, Loader
from credit_jax.data.opened_data import NamedData
from credit_jax.data.schedule import Task, forecast_length
from credit_jax.evaluation.opening import ScoreOptions
from credit_jax.forecast import Forecaster
from credit_jax.forecast.archive import Archive, identity_of, read_record, software
from credit_jax.forecast.campaign import score_campaign
from credit_jax.forecast.delivery import ForecastStore, TaskWriter
from credit_jax.forecast.outputs import Outputs, outputs_of
from credit_jax.forecast.zarr_store import ZarrStore
from credit_jax.io.atomic import move_aside
from credit_jax.parallel.processes.coordinator import wait_for_all
from credit_jax.plan.forecast import ForecastPlan, plan_forecast
from credit_jax.training.setup import Setup
from credit_jax.training.state import TrainState

# With more start dates, or more steps of all forecasts, evenly spaced ones are taken.
MAX_STARTS, MAX_STEPS = 60, 2400
# Of the forecasts, where `inference` has no other one.
LENGTH = "5d"
# Of the provenance: the forecast is that of the end of a run, which the next replaces.
REPORT = "report"


def held_out_starts(dataset: Dataset, num_steps: int) -> tuple[np.ndarray, int]:
    """Returns start dates with truth at every lead time, and the number of steps."""
    targets = [dataset.target_time(i) for i in range(len(dataset))]
    trained = {*dataset.starts.tolist(), *np.array(targets, "datetime64[ns]").tolist()}
    starts, steps = dataset.starts, 0
    while steps < num_steps:
        ends = dataset.shifted(starts, steps + 1).tolist()
        further = starts[[end in trained for end in ends]]
        if not len(further):
            break
        starts, steps = further, steps + 1
    most = min(len(starts), MAX_STARTS, max(1, MAX_STEPS // max(1, steps)))
    indices = np.linspace(0, len(starts) - 1, most)
    return starts[indices.round().astype(int)], steps


def _usable(
    loader: Loader, starts: np.ndarray, num_steps: int
) -> tuple[np.ndarray, str]:
    """The start dates whose data can be used, and a note on the others."""
    # A forecast of several steps reads the samples of all its steps.
    dataset = loader.dataset
    if not dataset.replaces:
        return starts, ""
    index = {start: i for i, start in enumerate(dataset.starts.tolist())}
    # Forecasts share samples, which are read to find out.
    fault = cache(lambda time: loader.fault(index[time]))
    steps = [dataset.shifted(starts, step).tolist() for step in range(num_steps)]
    reasons = [
        next(filter(None, map(fault, start_steps)), None)
        for start_steps in zip(*steps, strict=True)
    ]
    faults = [reason for reason in reasons if reason is not None]
    if not faults:
        return starts, ""
    note = (
        f"{len(faults)} of {len(starts)} start dates are left out of the scores, as "
        f"their data cannot be used; the first: {faults[0]}"
    )
    if len(faults) == len(starts):
        raise ValueError(note)
    return starts[[reason is None for reason in reasons]], note


def plan_held_out(setup: Setup) -> HeldOut:
    """Forecasts from held-out start dates, as long as `inference` if the period is."""
    length, config = LENGTH, setup.plan.config
    # Training does not read the section, and `check` says what is wrong with it.
    with suppress(ValueError):
        length = forecast_length(config.inference or InferenceConfig(), LENGTH)
    steps = max(1, int(duration(length) / config.data.time_step))
    try:
        return _plan_steps(setup, steps)
    except ValueError as error:
        if steps == 1:
            raise
        first = str(error).partition("\n")
        one = _plan_steps(setup, 1)
        reason = f"scores are of one step: {(first[2] or first[0]).strip()}"
        return replace(one, left_out="; ".join(filter(None, (reason, one.left_out))))


def _plan_steps(setup: Setup, steps: int) -> HeldOut:
    """Plans forecasts of so many steps, or of fewer in a shorter period."""
    config, loader = setup.plan.config, setup.valid_loader
    assert loader is not None, "asked for by the caller"
    starts, steps = held_out_starts(loader.dataset, steps)
    starts, left_out = _usable(loader, starts, steps)
    # The files are those that the run has open. Forecasts read them in another way than
    # the loader: no diagnostic variables, and no state after the first.
    plan = plan_forecast(
        config.model_copy(update={"inference": None}),
        config.trainer.parallelism,
        num_devices=setup.model.mesh.size,
        init_times=[str(time) for time in starts],
        num_steps=steps,
        overrides={"data": config.validation_data},
        run=setup.plan,
        like=setup.train_loader.coordinates(),
    )
    return HeldOut(setup, plan, left_out)


@dataclass(frozen=True)
class LastForecast(ZarrStore):
    """A store of a campaign that keeps only the forecast of its last start date."""

    number: int = 0  # of that start date in the campaign

    def writer(self, task: Task) -> TaskWriter:
        if task.start != self.number:
            return ForecastStore().writer(task)
        return super().writer(Task(0, 0))


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Forecasts on the mesh of the training."""

    setup: Setup
    plan: ForecastPlan
    # A note on start dates whose data cannot be used; "" if there are none.
    left_out: str = ""

    @cached_property
    def outputs(self) -> Outputs:
        """The fields of a step: all that are predicted."""
        return outputs_of(self.plan, self.setup.valid_model)

    def score(self, state: TrainState, folder: Path) -> xr.Dataset:
        """Makes and scores the forecasts; writes that of the last start date."""
        plan, model = self.plan, self.setup.valid_model
        first = jax.process_index() == 0
        sums = folder.with_name(f".{folder.name}_sums")
        if first:
            # A folder that is not of the end of a run has a user's files.
            is_report = False
            with suppress(ValueError):
                is_report = REPORT in read_record(folder).provenance
            if folder.exists() and not is_report:
                move_aside(folder)
            for earlier in (folder, sums):
                shutil.rmtree(earlier, ignore_errors=True)
        wait_for_all("earlier forecasts are removed")
        # The record of the forecast of the last start date.
        schedule = replace(plan.schedule, starts=plan.schedule.starts[-1:])
        identity = identity_of(replace(plan, schedule=schedule), model, "zarr")
        provenance = {"config": dump_config(self.setup.plan.config), REPORT: True}
        provenance |= software()
        archive = Archive(folder, schedule, identity, provenance)
        forecaster = Forecaster(model, *state.evaluated)
        config = self.setup.plan.config
        parts, last = (folder, self.outputs, schedule), len(plan.schedule.starts) - 1
        store = LastForecast(*parts, software(), number=last)
        assert self.setup.valid_loader is not None, "asked for by the caller"
        seen = self.setup.valid_loader.seen_in(config.data)
        period = "validation" if seen else "held-out"
        try:
            scores = score_campaign(
                plan,
                model,
                forecaster.weights,
                sums,
                options=ScoreOptions(
                    self.plan.truth,
                    training=NamedData.before(config.preblocks, config.data),
                    open_files=self.setup.plan.open_files,
                ),
                batch=config.trainer.valid_batch_size,
                store=store,
                attributes={
                    "title": f"forecasts from {period} start dates",
                    "forecast": config.save_loc,
                    "truth": f"the {period} period of the data section",
                    **({"left_out": self.left_out} if self.left_out else {}),
                },
                fill_nan=True,
            )
            wait_for_all("scores are read")
        finally:
            if first:
                shutil.rmtree(sums, ignore_errors=True)
        if first:
            archive.create()
            archive.mark(Task(0, 0), {})
        return scores
