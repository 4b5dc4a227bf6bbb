"""Forecasts of a trained model: `python -m credit_jax.forecast --config FILE`.

Reads the `inference:` section of CREDIT's gen2 YAML, rolls the model out on any mesh,
and writes CREDIT's NetCDF files or one Zarr store that WeatherBench reads.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from credit_jax.checkpoint.artifact import Artifact
from credit_jax.checkpoint.store import label_of
from credit_jax.cli.commands import (
    DIVERGED,
    FAILED,
    OK,
    CommandError,
    StopOption,
    option,
    parse_shard,
    print_line,
    print_lines,
)
from credit_jax.cli.model import ModelOptions, PlannedForecasts
from credit_jax.cli.score import ComparisonOptions, refuse_other_scores, report
from credit_jax.config.data import raw_ranges
from credit_jax.config.inference import InferenceConfig
from credit_jax.config.messages import counted
from credit_jax.data.perturbations import PERTURBATIONS
from credit_jax.evaluation.comparison import attributes_of
from credit_jax.evaluation.opening import in_order
from credit_jax.evaluation.regions import choose_regions
from credit_jax.forecast.archive import Archive
from credit_jax.forecast.autoregression import ForecastStep
from credit_jax.forecast.campaign import Campaign, Summary
from credit_jax.forecast.delivery import NonFiniteForecastError
from credit_jax.forecast.members import OnlineScores, online_scores
from credit_jax.forecast.repository import folder_of
from credit_jax.io.errors import WriteError
from credit_jax.io.icechunk import is_repository
from credit_jax.io.mirror import local_path
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.parallel.compiler import compile_sooner
from credit_jax.parallel.processes.coordinator import wait_for_all
from credit_jax.parallel.processes.watch import RESUME
from credit_jax.plan.forecast import ForecastPlan
from credit_jax.training.signals import StopRequests


def header(
    source: str | None,
    plan: ForecastPlan,
    model: ParallelModel,
    checkpoint: Artifact,
) -> list[str]:
    """Lines printed before the forecasts: source, mesh, start dates, length."""
    schedule, axes = plan.schedule, model.axes
    count = len(schedule.starts)
    first, last = (str(start)[:16] for start in schedule.starts[[0, -1]])
    dates = first if count == 1 else f"{count} from {first} to {last}"
    hours = schedule.timestep / np.timedelta64(1, "h")
    weights = label_of(average=checkpoint.average)
    devices = model.mesh.devices.reshape(-1)
    return [
        f"credit_jax  forecasts of {source}, weights of {checkpoint.path} ({weights})",
        f"mesh   {axes.summary} on "
        f"{counted(len(devices), f'{devices[0].platform} device')}, "
        f"{model.parallel_config.precision.compute.name}",
        f"dates  {dates}, "
        f"{counted(schedule.num_members, 'member')}, "
        f"{counted(schedule.num_steps, 'step')} of {hours:g} h",
    ]


def footer(summary: Summary, out: str) -> list[str]:
    """Lines printed after the forecasts: counts, times, missing values."""
    times = summary.times
    listed = ", ".join(f"{name} {n}" for name, n in summary.missing.items())
    lines = {
        f"{counted(summary.num_forecasts, 'forecast')} made, in {out}"
        + (f", {summary.num_done} found there" if summary.num_done else ""): True,
        f"unroll {times.unroll:.2f} s, read {times.read:.2f} s, write "
        f"{times.write:.2f} s beside each other; devices idle {100 * times.idle:.1f} % "
        f"of the {times.total:.2f} s since the first step": summary.num_forecasts,
        f"Stopped by {summary.stopped}; --resume makes those that are missing (exit "
        f"code {RESUME})": summary.stopped,
        f"values that are not finite, written as missing: {listed}": listed,
    }
    return [line for line, applies in lines.items() if applies]


class Forecast(ModelOptions, ComparisonOptions, StopOption):
    """Forecast from the dates of the inference section, or of the command line."""

    example = (
        "--config RUN/model.yml --init-time 2001-06-01T00 --length 5d --format zarr"
    )
    exclusive = ("steps", "length")
    repositories = ("out",)

    init_time: tuple[str, ...] = option(
        "start date, instead of those of the inference section; repeatable", (), "DATE"
    )
    steps: int | None = option("steps of each forecast", None)
    length: str | None = option("length of each forecast: 10d", None, "DURATION")
    members: int | None = option("ensemble members of each forecast", None, ge=1)
    perturbation: str | None = option(
        "how their initial states differ, instead of inference.perturbation.type",
        None,
        choices=tuple(PERTURBATIONS.names),
    )
    batch: int = option("forecasts side by side on a device", 1, ge=1)
    out: str | None = option(
        "folder, instead of inference.save_forecast, or an Icechunk repository, which "
        "gets a commit for each start date",
        None,
        "DIR",
    )
    format: Literal["netcdf", "zarr", "none"] | None = option(
        "instead of that of the config; none writes scores alone", None
    )
    zarr_format: Literal[2, 3] = option("version of Zarr", 3)
    shard: str = option(
        "make the I-th of N parts of the forecasts, for job arrays", "1/1", "I/N"
    )
    resume: bool = option("make only the forecasts that are missing", False)
    nan: Literal["raise", "fill"] = option(
        "values that are not finite end the command, or are missing values", "raise"
    )
    writers: int = option(
        "threads that write files (half as many as cores, 1 to 4)",
        max(1, min(4, (os.cpu_count() or 1) // 2)),
        ge=1,
    )
    score: str | None = option(
        "score the forecasts, and write scores there", None, "DIR"
    )

    def run(self) -> int:
        """Makes the forecasts and writes them."""
        stop_at = self.stop_time()
        compile_sooner()
        config, package = self.read()
        inference = config.inference or InferenceConfig()
        out = self._out(inference)
        changes: dict[str, Any] = {}
        if self.members is not None:
            changes["members"] = self.members
        if self.perturbation is not None:
            kind = {"type": self.perturbation}
            changes["perturbation"] = {**inference.perturbation, **kind}
        planned = self.plan(
            config,
            package,
            init_times=self.init_time,
            num_steps=self.steps,
            length=self.length,
            changes=changes,
        )
        checkpoint, plan, model = planned.checkpoint, planned.plan, planned.model
        outputs = planned.outputs
        url = out if is_repository(out) else None
        folder = (
            Path(local_path(out)).resolve()
            if url is None
            else folder_of(url, plan.schedule)
        )
        size = self.batch * model.axes.num_data
        groups = plan.schedule.groups(size, parse_shard(self.shard))
        scores = self._scores(planned, size, folder)
        store, archive = planned.store(
            folder,
            self.format,
            self.zarr_format,
            None if self.score is None else self._compared(),
            url,
        )
        tasks = [task for group in groups for task in group]
        archive.check(tasks, resume=self.resume)
        if scores is not None and self.score is not None:
            refuse_other_scores(self.score, "--score", _attributes(scores, archive))
        wait_for_all("the folder of the forecasts")
        weights = planned.weights
        print_lines(header(self.package or self.config, plan, model, checkpoint))
        promise = "the command ends after the forecasts in progress"
        with StopRequests(stop_at, promise=promise) as requests:
            campaign = Campaign(
                plan,
                ForecastStep(model, plan.rollout, outputs.selection),
                weights,
                outputs,
                store,
                archive,
                groups,
                size,
                scores,
                num_writers=self.writers,
                max_pending=plan.inference.output.max_pending,
                fill_nan=self.nan == "fill",
                progress=lambda done: print_lines(
                    [f"{done} of {len(tasks)} forecasts"]
                ),
                stop=requests.of_any_process,
            )
            try:
                summary = campaign.run()
            except NonFiniteForecastError as error:
                raise CommandError(str(error), DIVERGED) from error
            except WriteError as error:
                raise CommandError(f"--out: {error}", FAILED) from error
        print_lines(footer(summary, archive.address))
        if scores is not None and self.score is not None and jax.process_index() == 0:
            result = scores.scores(_attributes(scores, archive))
            if result is not None:
                done, total = result.attrs["num_start_dates"], len(plan.schedule.starts)
                if done < total:
                    note = f"note: scores of {done} of {total} start dates so far"
                    print_line(note, "yellow")
                report(result, self.score)
        return OK if summary.stopped is None else RESUME

    def _out(self, inference: InferenceConfig) -> str:
        """What forecasts are written to; the folder of scores if none are."""
        named = self.out or inference.save_forecast
        if self.format == "none":
            if self.score is None:
                raise ValueError(
                    "--format none writes no forecasts; it needs --score DIR"
                )
            named = self.out or self.score
        if not named:
            raise ValueError(
                "--out DIR is needed: inference.save_forecast names no folder"
            )
        if "$" in (expanded := os.path.expandvars(named)):
            raise ValueError(
                f"inference.save_forecast: {expanded!r} holds an environment variable "
                "that is not set; set it, or give --out"
            )
        return expanded

    def _compared(self) -> dict[str, Any]:
        """The options of `ComparisonOptions`."""
        values = self.model_dump(include={*ComparisonOptions.model_fields} - {"debug"})
        return {k: [*v] if isinstance(v, tuple) else v for k, v in values.items()}

    def _scores(
        self, planned: PlannedForecasts, size: int, folder: Path
    ) -> OnlineScores | None:
        """The scores requested by `--score`, or None."""
        if self.score is None:
            for name, value in self._compared().items():
                if value:
                    raise ValueError(f"--{name} belongs to --score DIR")
            return None
        plan, written = planned.plan, planned.checkpoint.files.written
        dates = raw_ranges(written)
        scores = online_scores(
            self.score_options(plan.config, dates),
            choose_regions(in_order(self.regions)),
            plan.schedule,
            planned.model,
            planned.outputs,
            size,
            folder,
        )
        print_lines([f"note: {note}" for note in scores.comparison.notes], "yellow")
        return scores


main = Forecast.main


def _attributes(scores: OnlineScores, archive: Archive) -> dict[str, Any]:
    provenance = {k: v for k, v in archive.provenance.items() if k != "config"}
    return attributes_of(archive.address, scores.comparison, provenance)
