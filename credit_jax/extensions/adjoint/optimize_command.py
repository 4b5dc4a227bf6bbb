"""Fit an initial state to later ones: `python -m credit_jax.optimize_ic --config F`.

CREDIT's trainer `ic-opt`: the state whose forecast is nearest to the data, by the loss
of the config.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from credit_jax.cli.commands import DIVERGED, OK, CommandError, option, print_line
from credit_jax.cli.model import RunOptions
from credit_jax.config import Config
from credit_jax.config.assimilation import OptimizeConfig
from credit_jax.config.inference import OutputConfig
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.data.sample_reader import SampleReader
from credit_jax.extensions.adjoint.maps import map_of_plan
from credit_jax.extensions.adjoint.optimization import (
    StateIteration,
    TrajectoryLoss,
    optimize_state,
)
from credit_jax.forecast.forecaster import to_host
from credit_jax.forecast.netcdf import to_dataset
from credit_jax.io.atomic import new_file, refuse_existing
from credit_jax.io.netcdf import write_netcdf
from credit_jax.parallel.compiler import compile_sooner
from credit_jax.parallel.placement import place_batch
from credit_jax.plan import RunPlan, plan_run
from credit_jax.plan.forecast import ForecastPlan

ANALYSIS, INCREMENT, LOG = "analysis.nc", "increment.nc", "log.csv"


class OptimizeState(RunOptions):
    """Fit the initial state of a forecast to the data at its later times."""

    example = "--config RUN/model.yml --init-time 2001-06-01 --out fitted"

    init_time: str = option("date of the state", metavar="DATE")
    out: str = option(f"folder of {ANALYSIS}, {LOG} ...", metavar="DIR")

    def run(self) -> int:
        """Fits the state and writes it."""
        compile_sooner()
        out = Path(self.out)
        for name in (ANALYSIS, INCREMENT, LOG):
            refuse_existing(out / name)
        config, _ = self.read()
        section = config.optimize_ic or OptimizeConfig()
        num_steps = config.data.forecast_len
        section.windows(num_steps)
        planned = self.plan(
            config,
            init_times=[self.init_time],
            num_steps=num_steps,
            changes={"output": OutputConfig(), "members": 1},
        )
        plan, model, outputs = planned.plan, planned.model, planned.outputs
        training, start = _training(config, plan, num_steps), plan.schedule.starts[0]
        loader, objective = training.loaders["train"], training.objective
        leads = range(1, num_steps + 1)
        forecast = map_of_plan(
            plan, model, planned.weights, leads, "normalized", objective.rollout
        )
        y = SampleReader(loader.dataset, loader.pipeline).read([0]).y
        y = np.repeat(y, model.axes.num_data, axis=0)
        stacked = np.moveaxis(y, 2, 0)[:, :, :, None]
        targets = place_batch({"y": stacked}, model.mesh)["y"]
        loss = TrajectoryLoss.of(forecast, objective.loss, targets)
        rows: list[StateIteration] = []

        def progress(iteration: StateIteration) -> None:
            rows.append(iteration)
            if len(rows) % section.iterations == 0 and jax.process_index() == 0:
                print_line(
                    f"{iteration.window} steps, {len(rows)} updates: loss "
                    f"{iteration.loss:.6g}"
                )

        try:
            fitted = optimize_state(loss, section, num_steps, progress)
        except FloatingPointError as error:
            raise CommandError(str(error), DIVERGED) from error
        assert forecast.normalization is not None, "the units are normalized"
        host = {key: to_host(x)[:1] for key, x in fitted.items()}
        states = [
            {k: x[0] for k, x in forecast.normalization.denormalize(fields).items()}
            for fields in (host, {k: x[:1] for k, x in forecast.state.items()})
        ]
        times = [
            plan.reader.data.time(start, k)
            for k in range(1 - model.model_def.frames, 1)
        ]
        outputs = outputs.only(host)
        if jax.process_index() == 0:
            changes = {key: states[0][key] - states[1][key] for key in host}
            for name, fields in ((INCREMENT, changes), (ANALYSIS, states[0])):
                steps = [
                    {key: fields[key][:, index] for key in host}
                    for index in range(len(times))
                ]
                dataset = to_dataset(outputs, times, steps)
                for variable in outputs.variables:
                    dataset[variable.name].attrs |= outputs.attributes_of(variable)
                with new_file(out / name) as path:
                    write_netcdf(dataset, path, {})
            with new_file(out / LOG) as path:
                log = pd.DataFrame(rows, index=range(1, len(rows) + 1))
                log.to_csv(path, index_label="iteration", lineterminator="\r\n")
            for note in loss_notes(rows):
                print_line(f"note: {note}", "yellow")
            print_line(f"written: {out}")
        return OK


main = OptimizeState.main


def loss_notes(rows: Sequence[StateIteration]) -> list[str]:
    """A line if the loss of the last window has not fallen."""
    losses = [row.loss for row in rows if row.window == rows[-1].window]
    if len(losses) == 1 or losses[-1] < losses[0]:
        return []
    return [
        f"the loss of {rows[-1].window} steps did not fall, from {losses[0]:.6g} to "
        f"{losses[-1]:.6g}; take a smaller optimize_ic.learning_rate"
    ]


def _training(config: Config, plan: ForecastPlan, num_steps: int) -> RunPlan:
    """The training on the steps after the first start date alone."""
    # Gradients go through all steps of its rollout.
    data, step = config.data, config.data.time_step
    start: Any = pd.Timestamp(plan.schedule.starts[0])
    dates = {
        "start_datetime": str(start - (data.history_len - 1) * step),
        "end_datetime": str(start + num_steps * step),
        "date_ranges": None,
    }
    # Nothing is validated, and no checkpoint is chosen; the mesh is that of forecasts.
    changes = {
        "parallelism": parse_parallelism("data=none"),
        "train_batch_size": 1,
        "grad_accum_every": 1,
        "batches_per_epoch": 0,
        "finetune": None,
        "backprop": "full",
        "skip_validation": True,
        "training_metric": "train_loss",
        "curriculum": (),
    }
    sections = {
        "data": data.model_copy(update=dates),
        "trainer": config.trainer.model_copy(update=changes),
    }
    shared_grid = plan.reader.pipeline.grid is None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return plan_run(
            config.model_copy(update=sections),
            num_devices=1,
            like=plan.reader.data.coordinates() if shared_grid else None,
        )
