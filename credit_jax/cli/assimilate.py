"""Analyses from forecasts and observations: `python -m credit_jax.assimilate`.

Incremental 4D-Var with the model as a strong constraint, in windows one after another.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from credit_jax.assimilation import read_background, read_observations
from credit_jax.assimilation.background import covariance_of
from credit_jax.assimilation.cycling import FORECASTS, Cycling, trajectory_grid
from credit_jax.assimilation.observations import (
    find_faults,
    in_units_of,
    notes_on_units,
    usable,
)
from credit_jax.assimilation.operators import Observer, operators_of
from credit_jax.cli.commands import DIVERGED, OK, CommandError, run_module
from credit_jax.cli.forecast.model import (
    config_of,
    package_of,
    planned_forecasts,
    print_lines,
)
from credit_jax.cli.forecast.options import add_model_options
from credit_jax.cli.forecast.places import places_of
from credit_jax.cli.options import (
    add_mesh_options,
    add_process_options,
    add_verify_option,
    join_processes,
)
from credit_jax.config.assimilation import AssimilationConfig
from credit_jax.config.dates import date_label, duration
from credit_jax.config.inference import OutputConfig
from credit_jax.config.load import read_with_objects
from credit_jax.data.calendars import STANDARD, shift_all
from credit_jax.data.schedule import ForecastSchedule, Task, steps_of
from credit_jax.forecast import Forecaster
from credit_jax.packages.package import Package
from credit_jax.parallel.compiler import CACHE_HELP, compile_sooner, use_cache
from credit_jax.transforms.rollout import PROGNOSTIC, field_type_of

HELP = "Make analyses from forecasts and observations, by 4D-Var."
EXAMPLE = "--config configs/assimilate_demo.yaml --out analyses"


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return run_module(__name__, argv, prog="python -m credit_jax.assimilate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `assimilate`."""
    add_model_options(parser)
    add = parser.add_argument
    add(
        "--assimilation",
        metavar="FILE",
        help="with --package: YAML with the keys of the assimilation section",
    )
    add("--out", required=True, metavar="DIR", help="folder of the analyses")
    add("--resume", action="store_true", help="go on after the last complete window")
    add_mesh_options(parser)
    add_verify_option(parser)
    add("--cache", metavar="DIR", help=CACHE_HELP)
    add_process_options(parser)
    # Of the stores of the analyses and forecasts.
    parser.set_defaults(format="netcdf", score=None)


def run(args: argparse.Namespace) -> int:
    """Makes the analyses of all windows.

    Raises:
        CommandError: a forecast is not finite.
        ValueError, OSError: the config, the run, its data or observations are invalid.
    """
    compile_sooner()
    package = package_of(args)
    config = config_of(args, package, _sections(args, package))
    section = config.assimilation
    if section is None:
        raise ValueError(
            f"{args.config} has no assimilation section; configs/assimilate_demo.yaml "
            "is an example"
        )
    step, first_steps = config.data.time_step, 0
    if section.first_lead is not None:
        first_steps = steps_of(section.first_lead, step, "assimilation.first_lead")
    num_steps = steps_of(section.window, step, "assimilation.window")
    table = read_observations(section.observations)
    covariance = read_background(section.background.file, section.background.scale)
    use_cache(args.cache)
    join_processes(args)
    planned = planned_forecasts(
        args,
        config,
        package,
        init_times=_starts(section, config.data.calendar or STANDARD),
        num_steps=num_steps,
        changes={"output": OutputConfig(), "members": 1},
        state_before=first_steps,
    )
    plan, model, outputs = planned.plan, planned.model, planned.outputs
    if model.model_def.frames != 1:
        raise ValueError(
            f"model.frames: the model reads {model.model_def.frames} times; analyses "
            "are those of models that read one"
        )
    _check_windows(plan.schedule)
    prognostic = [v for v in outputs.variables if field_type_of(v.key) == PROGNOSTIC]
    of_state = covariance_of(
        covariance, prognostic, outputs.latitude, outputs.longitude
    )
    grid = trajectory_grid(outputs, plan.schedule, 0, section.cycles - 1)
    operators = operators_of(section.operators, grid)
    table = in_units_of(table, grid, section.operators)
    faults = find_faults(table, grid, plan.schedule.num_steps, section.operators)
    observations, left_out = usable(table, faults, section.leave_out)
    notes = [f"left out: {line}" for line in left_out]
    notes += notes_on_units(observations, grid, section.operators)
    print_lines([f"note: {note}" for note in notes], "yellow")
    _, archive = places_of(
        args, plan, model, Path(args.out) / FORECASTS, outputs, planned.checkpoint
    )
    # More windows may be added later.
    what = section.model_dump(mode="json", exclude={"cycles"})
    first = [str(plan.schedule.starts[0])]
    identity = {**archive.identity, "start dates": first, "assimilation": what}
    archive = replace(archive, identity=identity)
    tasks = [Task(number, 0) for number in range(section.cycles)]
    archive.check(tasks, resume=args.resume)
    cycling = Cycling(
        section,
        plan,
        model,
        Forecaster(model, *planned.checkpoint.restore(model)).weights,
        outputs,
        of_state,
        Observer(operators, model.mesh),
        observations,
        Path(args.out),
        archive,
        lambda line: print_lines([line]),
        first_steps,
    )
    try:
        cycling.run()
    except FloatingPointError as error:
        raise CommandError(str(error), DIVERGED) from error
    print_lines([f"written: {args.out}"])
    return OK


def _sections(
    args: argparse.Namespace, package: Package | None
) -> dict[str, dict[str, Any]]:
    """The section that packages do not hold, from its file.

    Raises:
        ValueError: a package needs the file, and a config has the section itself.
    """
    if package is None and args.assimilation is not None:
        raise ValueError(
            "--assimilation belongs to --package; a config has its section"
        )
    if package is None:
        return {}
    if args.assimilation is None:
        raise ValueError(
            "--package needs --assimilation FILE, as a package has no such section"
        )
    return {"assimilation": read_with_objects(args.assimilation)}


def _check_windows(schedule: ForecastSchedule) -> None:
    """Checks that each window starts where the one before ends.

    Raises:
        ValueError: it does not, in the calendar of the data.
    """
    numbers = range(len(schedule.starts) - 1)
    ends = [schedule.valid_time(number, schedule.num_steps) for number in numbers]
    if not np.array_equal(ends, schedule.starts[1:]):
        raise ValueError(
            f"data.calendar: the data have the calendar {schedule.calendar}, in which "
            "the windows do not follow one another; name it in data.calendar"
        )


def _starts(section: AssimilationConfig, calendar: str) -> list[str]:
    """The start dates of all windows."""
    first = date_label(section.start).to_datetime64()
    window = duration(section.window)
    return [
        str(shift_all(np.array([first]), number * window, calendar)[0])
        for number in range(section.cycles)
    ]


if __name__ == "__main__":
    sys.exit(main())
