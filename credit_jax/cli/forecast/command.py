"""Forecasts of a trained model: `python -m credit_jax.forecast --config FILE`.

Reads the `inference:` section of CREDIT's gen2 YAML, rolls the model out on any mesh,
and writes CREDIT's NetCDF files or one Zarr store that WeatherBench reads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from credit_jax.adjoint.growth import SingularMembers
from credit_jax.checkpoint.store import label_of
from credit_jax.cli.commands import (
    DIVERGED,
    FAILED,
    OK,
    CommandError,
    print_line,
    run_module,
)
from credit_jax.cli.forecast.model import (
    config_of,
    package_of,
    planned_forecasts,
    print_lines,
)
from credit_jax.cli.forecast.options import (
    add_arguments,
    folder_of,
    overrides,
    parse_shard,
)
from credit_jax.cli.forecast.places import places_of, scores_of
from credit_jax.cli.options import join_processes, stop_time
from credit_jax.cli.score import refuse_other_scores, report
from credit_jax.config import Config
from credit_jax.config.messages import counted
from credit_jax.evaluation.comparison import attributes_of
from credit_jax.forecast import Forecaster
from credit_jax.forecast.archive import Archive
from credit_jax.forecast.campaign import Campaign, CampaignSettings
from credit_jax.forecast.delivery import NonFiniteForecastError
from credit_jax.forecast.online_scores import OnlineScores
from credit_jax.forecast.summary import Summary
from credit_jax.io.errors import WriteError
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.packages.package import Package
from credit_jax.parallel.compiler import compile_sooner, use_cache
from credit_jax.parallel.processes.coordinator import wait_for_all
from credit_jax.parallel.processes.exit_code import RESUME
from credit_jax.plan.forecast import ForecastPlan
from credit_jax.training.run_weights import RunWeights
from credit_jax.training.signals import StopRequests


def header(
    source: str,
    plan: ForecastPlan,
    model: ParallelModel,
    checkpoint: RunWeights | Package,
) -> list[str]:
    """Lines printed before the forecasts: source, mesh, start dates, length."""
    schedule, axes = plan.schedule, model.axes
    count, (first, last) = len(schedule.starts), schedule.starts[[0, -1]]
    dates = f"{count} from {_minute(first)} to {_minute(last)}"
    hours = schedule.timestep / np.timedelta64(1, "h")
    weights = label_of(average=checkpoint.average)
    devices = model.mesh.devices.reshape(-1)
    return [
        f"credit_jax  forecasts of {source}, weights of {checkpoint.path} ({weights})",
        f"mesh   {axes.summary} on "
        f"{counted(len(devices), f'{devices[0].platform} device')}, "
        f"{model.parallel_config.precision.compute.name}",
        f"dates  {_minute(first) if count == 1 else dates}, "
        f"{counted(schedule.num_members, 'member')}, "
        f"{counted(schedule.num_steps, 'step')} of {hours:g} h",
    ]


def footer(summary: Summary, folder: Path) -> list[str]:
    """Lines printed after the forecasts: counts, times, missing values."""
    times = summary.times
    lines = [
        f"{counted(summary.num_forecasts, 'forecast')} made, in {folder}"
        + (f", {summary.num_done} found there" if summary.num_done else ""),
    ]
    if summary.num_forecasts:
        lines.append(
            f"unroll {times.unroll:.2f} s, read {times.read:.2f} s, "
            f"write {times.write:.2f} s beside each other; devices idle "
            f"{100 * times.idle:.1f} % of the {times.total:.2f} s since the first step"
        )
    if summary.stopped:
        lines.append(
            f"Stopped by {summary.stopped}; --resume makes those that are missing "
            f"(exit code {RESUME})"
        )
    if summary.missing:
        listed = ", ".join(f"{name} {n}" for name, n in summary.missing.items())
        lines.append(f"values that are not finite, written as missing: {listed}")
    return lines


def _minute(time: np.datetime64) -> str:
    return str(time)[:16]


# Options of the command, see `credit_jax.cli.commands.Command`.
__all__ = ["EXAMPLE", "HELP", "add_arguments", "main", "run"]
HELP = "Forecast from the start dates of the inference section, or of the command line."
EXAMPLE = "--config RUN/model.yml --init-time 2001-06-01T00 --length 5d --format zarr"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line `python -m credit_jax.forecast`; returns the exit code."""
    return run_module(__name__, argv, prog="python -m credit_jax.forecast")


def run(args: argparse.Namespace) -> int:
    """Makes the forecasts and writes them.

    Returns:
        0 when all forecasts are made, `RESUME` if a signal or `--stop-after` ended the
        command before the last ones.

    Raises:
        CommandError: with exit code 1 if writing fails, 3 for values that are not
            finite.
        ValueError, OSError: the forecasts cannot start.
    """
    stop_at = stop_time(args)
    compile_sooner()
    package = package_of(args)
    config = config_of(args, package)
    use_cache(args.cache)
    join_processes(args)
    folder = _folder(args, config)
    planned = planned_forecasts(
        args,
        config,
        package,
        init_times=args.init_time,
        num_steps=args.steps,
        length=args.length,
        changes=overrides(args, config.inference),
    )
    checkpoint, plan, model = planned.checkpoint, planned.plan, planned.model
    outputs = planned.outputs
    size = args.batch * model.axes.num_data
    groups = plan.schedule.groups(size, parse_shard(args.shard))
    scores = scores_of(args, plan, model, outputs, size, folder, checkpoint)
    store, archive = places_of(args, plan, model, folder, outputs, checkpoint)
    tasks = [task for group in groups for task in group]
    archive.check(tasks, resume=args.resume)
    if scores is not None:
        refuse_other_scores(args.score, "--score", _attributes(scores, archive))
    wait_for_all("the folder of the forecasts")
    weights = Forecaster(model, *checkpoint.restore(model)).weights
    print_lines(header(args.package or args.config, plan, model, checkpoint))
    changes = None
    if plan.inference.perturbation.type == "singular":
        changes = SingularMembers(plan, model, weights, outputs)
    promise = "the command ends after the forecasts in progress"
    with StopRequests(stop_at, promise=promise) as requests:
        settings = CampaignSettings(
            num_writers=args.writers,
            max_pending=plan.inference.output.max_pending,
            fill_nan=args.nan == "fill",
            progress=lambda done: print_lines([f"{done} of {len(tasks)} forecasts"]),
            stop=requests.of_any_process,
        )
        campaign = Campaign.of_plan(
            plan,
            model,
            weights,
            outputs,
            store,
            archive,
            groups,
            size,
            settings,
            scores=scores,
            changes=changes,
        )
        summary = _completed(campaign)
    print_lines(footer(summary, folder))
    if scores is not None and jax.process_index() == 0:
        _report(scores, archive, args.score)
    return OK if summary.stopped is None else RESUME


def _folder(args: argparse.Namespace, config: Config) -> Path:
    """The folder of the forecasts; that of the scores if no forecasts are written."""
    if args.format != "none":
        return folder_of(config.inference, args.out)
    if args.score is None:
        raise ValueError("--format none writes no forecasts; it needs --score DIR")
    return folder_of(config.inference, args.out or args.score)


def _completed(campaign: Campaign) -> Summary:
    """Runs the campaign.

    Raises:
        CommandError: writing fails, or values are not finite.
    """
    try:
        return campaign.run()
    except NonFiniteForecastError as error:
        raise CommandError(str(error), DIVERGED) from error
    except WriteError as error:
        raise CommandError(f"--out: {error}", FAILED) from error


def _attributes(scores: OnlineScores, archive: Archive) -> dict[str, Any]:
    provenance = {k: v for k, v in archive.provenance.items() if k != "config"}
    return attributes_of(str(archive.folder), scores.comparison, provenance)


def _report(scores: OnlineScores, archive: Archive, folder: str) -> None:
    """Writes the scores of the start dates that are done, and prints them."""
    result = scores.scores(_attributes(scores, archive))
    if result is None:
        return
    done, total = result.attrs["num_start_dates"], len(archive.schedule.starts)
    if done < total:
        print_line(f"note: scores of {done} of {total} start dates so far", "yellow")
    report(result, folder)


if __name__ == "__main__":
    sys.exit(main())
