"""Forecasts of a trained model: `python -m credit_jax.forecast --config FILE`.

Reads the `inference:` section of CREDIT's gen2 YAML, rolls the model out on any mesh,
and writes CREDIT's NetCDF files or one Zarr store that WeatherBench reads.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from credit_jax.commands import (
    DIVERGED,
    FAILED,
    OK,
    CommandError,
    add_config_options,
    add_mesh_options,
    add_process_options,
    add_stop_option,
    add_verify_option,
    join_processes,
    print_line,
    run_module,
    stop_time,
    warnings_as_notes,
)
from credit_jax.config import load_config
from credit_jax.config.inference import InferenceConfig
from credit_jax.config.load import dump_config
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.evaluation.attributes import attributes_of
from credit_jax.evaluation.opening import in_order
from credit_jax.evaluation.regions import choose_regions
from credit_jax.inference import Forecaster
from credit_jax.inference.archive import Archive, software
from credit_jax.inference.campaign import (
    Campaign,
    NonFiniteForecastError,
    Summary,
)
from credit_jax.inference.members import perturbed_reader
from credit_jax.inference.netcdf import NetcdfStore
from credit_jax.inference.online_scores import OnlineScores, online_scores
from credit_jax.inference.outputs import Outputs
from credit_jax.inference.plan import ForecastPlan, plan_forecast
from credit_jax.inference.sharing import wait_for_all
from credit_jax.inference.stores import NoStore, Store
from credit_jax.inference.zarr_store import ZarrStore
from credit_jax.models.parallel_model import ParallelModel
from credit_jax.nn.noise import Noise
from credit_jax.packages.package import Package, open_package
from credit_jax.parallel.compiler import CACHE_HELP, compile_sooner, use_cache
from credit_jax.parallel.mesh.devices import forward_devices
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.parallel.processes.exit_code import RESUME
from credit_jax.score import add_score_options, report, score_options
from credit_jax.training.run_weights import RunWeights, open_weights
from credit_jax.training.signals import StopRequests

_SCORE_OPTIONS = ("truth", "climatology", "regions", "variables")
HELP = "Forecast from the start dates of the inference section, or of the command line."
EXAMPLE = "--config RUN/model.yml --init-time 2001-06-01T00 --length 5d --format zarr"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line `python -m credit_jax.forecast`; returns the exit code."""
    return run_module(__name__, argv, prog="python -m credit_jax.forecast")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `forecast`."""
    add_config_options(parser, required=False)
    add = parser.add_argument
    add("--package", metavar="DIR", help="a model package, instead of --config")
    add("--data", metavar="FILE", help="with --package: YAML of its data section")
    add("--checkpoint", metavar="DIR", help="folder of the run (default: save_loc)")
    add("--step", type=int, help="which checkpoint (default: the newest)")
    add(
        "--weights",
        choices=("average", "last"),
        help="the moving average, if there is one (default), or the last weights",
    )
    add(
        "--init-time",
        action="append",
        default=[],
        metavar="DATE",
        help="start date, instead of those of the inference section; repeatable",
    )
    add("--steps", type=int, help="steps of each forecast")
    add("--length", metavar="DURATION", help="length of each forecast: 10d")
    add("--members", type=int, help="ensemble members of each forecast")
    add_mesh_options(parser)
    add_verify_option(parser)
    add("--batch", type=int, default=1, help="forecasts side by side on a device")
    add("--out", metavar="DIR", help="folder, instead of inference.save_forecast")
    add(
        "--format",
        choices=("netcdf", "zarr", "none"),
        help="instead of that of the config; none writes scores alone",
    )
    add("--zarr-format", type=int, choices=(2, 3), default=3, help="version of Zarr")
    add(
        "--shard",
        default="1/1",
        metavar="I/N",
        help="make the I-th of N parts of the forecasts, for job arrays",
    )
    add(
        "--resume", action="store_true", help="make only the forecasts that are missing"
    )
    add(
        "--nan",
        choices=("raise", "fill"),
        default="raise",
        help="values that are not finite end the command, or are missing values",
    )
    add(
        "--writers",
        type=int,
        default=max(1, min(4, (os.cpu_count() or 1) // 2)),
        help="threads that write files (default: half as many as cores, 1 to 4)",
    )
    add("--score", metavar="DIR", help="score the forecasts, and write scores there")
    add_score_options(parser)
    add("--cache", metavar="DIR", help=CACHE_HELP)
    add_stop_option(parser)
    add_process_options(parser)


def run(args: argparse.Namespace) -> int:
    """Plans, forecasts, writes.

    Returns:
        0 when all forecasts are made, `RESUME` where a signal or `--stop-after` ended
        them before the last ones.

    Raises:
        CommandError: with exit code 1 if writing fails, 3 for values that are not
            finite.
        ValueError, OSError: the forecasts cannot start.
    """
    stop_at = stop_time(args)
    compile_sooner()
    package = _package(args)
    with warnings_as_notes():
        config = (
            load_config(args.config, args.set)
            if package is None
            else package.config(args.set, args.data)
        )
    with warnings_as_notes():
        inference = config.inference
    use_cache(args.cache)
    join_processes(args)
    parallelism = parse_parallelism(args.parallelism)
    if args.format == "none" and args.score is None:
        raise ValueError("--format none writes no forecasts; it needs --score DIR")
    alone = args.score if args.format == "none" else None
    folder = folder_of(inference, args.out or alone)
    devices = forward_devices(parallelism, args.devices)
    plan = plan_forecast(
        config,
        parallelism,
        num_devices=len(devices),
        init_times=args.init_time,
        num_steps=args.steps,
        length=args.length,
        overrides=_overrides(args),
    )
    for note in plan.notes if jax.process_index() == 0 else ():
        print_line(f"note: {note}", "yellow")
    model = plan.model.build(devices, mp_policy=default_mp_policy(args.precision))
    outputs = plan.outputs(model)
    checkpoint: RunWeights | Package
    if package is None:
        source = args.checkpoint or config.save_loc
        names, verify = plan.schema.names, args.verify
        checkpoint = open_weights(source, args.step, args.weights, names, verify=verify)
    else:
        package.check_data(plan.schema, outputs.latitude, outputs.longitude)
        checkpoint = package
    size = args.batch * model.axes.num_data
    groups = plan.schedule.groups(size, parse_shard(args.shard))
    scores = _scores(args, plan, model, outputs, size, folder)
    store, archive = _places(args, plan, folder, outputs, checkpoint)
    tasks = [task for group in groups for task in group]
    archive.check(tasks, resume=args.resume)
    wait_for_all("the folder of the forecasts")
    weights = Forecaster(model, *checkpoint.restore(model)).weights
    first = jax.process_index() == 0
    for line in header(args.package or args.config, plan, model, checkpoint):
        if first:
            print_line(line)
    try:
        step = plan.step(model, outputs)
        with StopRequests(stop_at) as requests:
            summary = Campaign(
                step,
                weights,
                perturbed_reader(plan, step, weights, outputs),
                store,
                archive,
                outputs,
                groups,
                size,
                plan.schedule.num_steps,
                plan.schedule.written,
                num_writers=args.writers,
                max_pending=plan.inference.output.max_pending,
                fill_nan=args.nan == "fill",
                progress=_shown(len(tasks)),
                scores=scores,
                noise=_noise(plan, model),
                stop=requests.of_any_process,
            ).run()
    except NonFiniteForecastError as error:
        raise CommandError(str(error), DIVERGED) from error
    except OSError as error:
        raise CommandError(f"--out: {folder}: {error}", FAILED) from error
    for line in footer(summary, folder) if first else ():
        print_line(line)
    if scores is not None and first:
        _report(scores, archive, args.score)
    return OK if summary.stopped is None else RESUME


def _noise(plan: ForecastPlan, model: ParallelModel) -> Noise | None:
    """The noise of a model that draws noise, from the config's seed."""
    if not model.model_def.draws_noise:
        return None
    return Noise(jax.random.key(plan.config.seed))


def folder_of(inference: InferenceConfig | None, out: str | None) -> Path:
    """The folder of the forecasts.

    Raises:
        ValueError: neither the command line nor the config names one.
    """
    named = out or (inference.save_forecast if inference else None)
    if not named:
        raise ValueError("--out DIR is needed: inference.save_forecast names no folder")
    if "$" in (expanded := os.path.expandvars(named)):
        raise ValueError(
            f"inference.save_forecast: {expanded!r} holds an environment variable that "
            "is not set; set it, or give --out"
        )
    return Path(expanded).resolve()


def parse_shard(text: str) -> tuple[int, int]:
    """The part and the number of parts of "I/N".

    >>> parse_shard("2/8")
    (2, 8)
    """
    number, _, count = text.partition("/")
    if number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count):
        return int(number), int(count)
    raise ValueError(
        f"--shard must be I/N with I from 1 to N, such as 2/8, got {text!r}"
    )


def header(
    source: str,
    plan: ForecastPlan,
    model: ParallelModel,
    checkpoint: RunWeights | Package,
) -> list[str]:
    """What the forecasts are, in a few lines."""
    schedule, axes = plan.schedule, model.axes
    dates = [str(schedule.starts[i])[:16] for i in (0, -1)]
    weights = "moving average" if checkpoint.average else "last weights"
    devices = model.mesh.devices.reshape(-1)
    return [
        f"credit_jax  forecasts of {source}, checkpoint {checkpoint.step} ({weights})",
        f"mesh   {axes.summary} on {len(devices)} {devices[0].platform} device(s)",
        f"dates  {len(schedule.starts)} from {dates[0]} to {dates[1]}, "
        f"{schedule.num_members} member(s), {schedule.num_steps} steps of "
        f"{plan.data.timestep}",
    ]


def footer(summary: Summary, folder: Path) -> list[str]:
    """What was done, in a few lines."""
    times = summary.times
    lines = [
        f"{summary.num_forecasts} forecasts are in {folder}"
        + (f", {summary.num_done} were there already" if summary.num_done else ""),
        f"unroll {times.unroll:.2f} s, read {times.read:.2f} s, "
        f"write {times.write:.2f} s of {times.total:.2f} s; "
        f"devices idle {100 * times.idle:.1f} %",
    ]
    if summary.stopped:
        lines.append(
            f"Stopped by {summary.stopped}; --resume makes those that are missing "
            f"(exit code {RESUME})"
        )
    if summary.missing:
        listed = ", ".join(f"{name} {n}" for name, n in summary.missing.items())
        lines.append(f"values that are not finite, written as missing: {listed}")
    return lines


def _package(args: argparse.Namespace) -> Package | None:
    """The model package of the command line; None for a run.

    Raises:
        ValueError: both or neither are named, or a package is refused.
    """
    of_run = ("config", "checkpoint", "step", "weights")
    given = [f"--{name}" for name in of_run if getattr(args, name) is not None]
    if args.package is None:
        if args.config is None:
            raise ValueError("--config FILE or --package DIR is needed")
        if args.data is not None:
            raise ValueError("--data belongs to --package; a config has its data")
        return None
    if given:
        raise ValueError(
            f"--package has its config and weights; leave out {', '.join(given)}"
        )
    return open_package(args.package)


def _shown(total: int) -> Callable[[int], None]:
    """Prints the number of forecasts, in the first process."""

    def show(done: int) -> None:
        if jax.process_index() == 0:
            print_line(f"{done} of {total} forecasts")

    return show


def _overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Keys of the inference section that the command line replaces."""
    found: dict[str, Any] = {}
    if args.members is not None:
        if args.members < 1:
            raise ValueError(f"--members must be at least 1, got {args.members}")
        found["members"] = args.members
    for name in ("batch", "writers"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}")
    return found


def _scores(
    args: argparse.Namespace,
    plan: ForecastPlan,
    model: ParallelModel,
    outputs: Outputs,
    size: int,
    folder: Path,
) -> OnlineScores | None:
    """The scores that the command line asks for.

    Raises:
        ValueError: options of scores without --score, or what is missing for them.
    """
    if args.score is None:
        given = [name for name in _SCORE_OPTIONS if getattr(args, name)]
        if given:
            raise ValueError(f"--{given[0]} belongs to --score DIR")
        return None
    scores = online_scores(
        score_options(args, plan.config),
        choose_regions(in_order(args.regions)),
        plan.schedule,
        model,
        outputs,
        size,
        folder,
    )
    for note in scores.comparison.notes if jax.process_index() == 0 else ():
        print_line(f"note: {note}", "yellow")
    return scores


def _report(scores: OnlineScores, archive: Archive, folder: str) -> None:
    """Writes the scores of the start dates that are done, and prints them."""
    provenance = {k: v for k, v in archive.provenance.items() if k != "config"}
    attributes = attributes_of(str(archive.folder), scores.comparison, provenance)
    found = scores.scores(attributes)
    if found is None:
        return
    done, total = found.attrs["num_start_dates"], len(archive.schedule.starts)
    if done < total:
        print_line(f"note: scores of {done} of {total} start dates so far", "yellow")
    report(found, folder)


def _places(
    args: argparse.Namespace,
    plan: ForecastPlan,
    folder: Path,
    outputs: Outputs,
    checkpoint: RunWeights | Package,
) -> tuple[Store, Archive]:
    """The store and its record."""
    schedule, config = plan.schedule, plan.inference.output
    form = args.format or config.format
    identity = {
        **plan.sections(),
        "format": f"zarr {args.zarr_format}" if form == "zarr" else form,
        "checkpoint": checkpoint.digest,
        "start dates": [str(time) for time in schedule.starts],
        "steps": schedule.num_steps,
        "members": schedule.num_members,
        "perturbation": plan.inference.perturbation.model_dump(mode="json"),
        "output": config.model_dump(mode="json"),
        "precision": args.precision,
        "weights": "average" if checkpoint.average else "last",
    }
    if args.score is not None:
        identity["scores"] = {name: getattr(args, name) for name in _SCORE_OPTIONS}
    provenance = {
        "config": dump_config(plan.config),
        "checkpoint": str(checkpoint.path),
        "checkpoint_step": checkpoint.step,
        "checkpoint_digest": checkpoint.digest,
        **software(),
    }
    archive = Archive(folder, schedule, identity, provenance)
    if form == "none":
        return NoStore(), archive
    if form == "netcdf":
        return NetcdfStore(folder, outputs, schedule, config), archive
    attributes = {key: _text(value) for key, value in provenance.items()}
    return (
        ZarrStore(folder, outputs, schedule, attributes, args.zarr_format),
        archive,
    )


def _text(value: Any) -> Any:
    """A value as attributes of files may have it."""
    return json.dumps(value) if isinstance(value, dict) else value


if __name__ == "__main__":
    sys.exit(main())
