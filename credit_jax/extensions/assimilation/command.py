"""Analyses from forecasts and observations: `python -m credit_jax.assimilate`.

Incremental 4D-Var with the model as a strong constraint, in windows one after another.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from credit_jax.cli.commands import DIVERGED, OK, CommandError, option, print_lines
from credit_jax.cli.model import ModelOptions
from credit_jax.config.dates import date_label, duration
from credit_jax.config.inference import OutputConfig
from credit_jax.config.load import read_with_objects
from credit_jax.data.calendars import STANDARD, shift_all
from credit_jax.data.schedule import Task, steps_of
from credit_jax.extensions.assimilation.background import covariance_of, read_background
from credit_jax.extensions.assimilation.cycling import (
    FORECASTS,
    Cycling,
    trajectory_grid,
)
from credit_jax.extensions.assimilation.observations import (
    find_faults,
    in_units_of,
    notes_on_units,
    read_observations,
    usable,
)
from credit_jax.extensions.assimilation.operators import Observer, operators_of
from credit_jax.parallel.compiler import compile_sooner
from credit_jax.transforms.rollout import PROGNOSTIC, field_type_of


class Assimilate(ModelOptions):
    """Make analyses from forecasts and observations, by 4D-Var."""

    example = "--config configs/assimilate_demo.yaml --out analyses"

    assimilation: str | None = option(
        "with --package: YAML with the keys of the assimilation section", None, "FILE"
    )
    out: str = option("folder of the analyses", metavar="DIR")
    resume: bool = option("go on after the last complete window", False)

    def run(self) -> int:
        """Makes the analyses of all windows."""
        compile_sooner()
        sections: dict[str, Any] = {}
        if self.assimilation is None and self.package is not None:
            raise ValueError(
                "--package needs --assimilation FILE, as it has no such section"
            )
        if self.assimilation is not None:
            if self.package is None:
                raise ValueError(
                    "--assimilation belongs to --package; a config has its section"
                )
            sections = {"assimilation": read_with_objects(self.assimilation)}
        config, package = self.read(sections)
        section = config.assimilation
        if section is None:
            raise ValueError(
                f"{self.config} has no assimilation section; "
                "configs/assimilate_demo.yaml is an example"
            )
        step, first_steps = config.data.time_step, 0
        if section.first_lead is not None:
            first_steps = steps_of(section.first_lead, step, "assimilation.first_lead")
        num_steps = steps_of(section.window, step, "assimilation.window")
        calendar, window = config.data.calendar or STANDARD, duration(section.window)
        first = np.array([date_label(section.start).to_datetime64()])
        init_times = [
            str(shift_all(first, number * window, calendar)[0])
            for number in range(section.cycles)
        ]
        table = read_observations(section.observations)
        covariance = read_background(section.background.file, section.background.scale)
        planned = self.plan(
            config,
            package,
            init_times=init_times,
            num_steps=num_steps,
            changes={"output": OutputConfig(), "members": 1},
            earlier_state=first_steps,
        )
        plan, model, outputs = planned.plan, planned.model, planned.outputs
        if model.model_def.frames != 1:
            raise ValueError(
                f"model.frames: the model reads {model.model_def.frames} times; "
                "expected 1 for analyses"
            )
        # Each window starts where the one before ends.
        schedule, numbers = plan.schedule, range(len(plan.schedule.starts) - 1)
        ends = [schedule.valid_time(number, schedule.num_steps) for number in numbers]
        if not np.array_equal(ends, schedule.starts[1:]):
            raise ValueError(
                f"data.calendar: the data have the calendar {schedule.calendar}, in "
                "which the windows do not follow one another; name it in data.calendar"
            )
        prognostic = [
            v for v in outputs.variables if field_type_of(v.key) == PROGNOSTIC
        ]
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
        _, archive = planned.store(Path(self.out) / FORECASTS, "netcdf")
        # More windows may be added later.
        subject = section.model_dump(mode="json", exclude={"cycles"})
        dates = [str(plan.schedule.starts[0])]
        identity = {**archive.identity, "start dates": dates, "assimilation": subject}
        archive = replace(archive, identity=identity)
        tasks = [Task(number, 0) for number in range(section.cycles)]
        archive.check(tasks, resume=self.resume)
        cycling = Cycling(
            section,
            plan,
            model,
            planned.weights,
            outputs,
            of_state,
            Observer(operators, model.mesh),
            observations,
            Path(self.out),
            archive,
            lambda line: print_lines([line]),
            first_steps,
        )
        try:
            cycling.run()
        except FloatingPointError as error:
            raise CommandError(str(error), DIVERGED) from error
        print_lines([f"written: {self.out}"])
        return OK


main = Assimilate.main
