"""Start dates, lead times and tasks of forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from credit_jax.config.dates import date_label, duration, duration_text
from credit_jax.config.inference import InferenceConfig
from credit_jax.data.calendars import STANDARD, shift_all, time_range

DEFAULT_LENGTH = "10d"


@dataclass(frozen=True, order=True)
class Task:
    """One forecast."""

    start: int  # number of its start date in the schedule
    member: int  # number of its ensemble member


@dataclass(frozen=True)
class ForecastSchedule:
    """All forecasts of a command."""

    starts: np.ndarray  # (start,) datetime64[ns] labels, increasing
    num_steps: int  # steps of each forecast
    timestep: pd.Timedelta  # time step of the model
    calendar: str = STANDARD  # calendar of the labels
    num_members: int = 1  # number of members of each start date
    # Lead times that are written are its multiples; None is all.
    interval: pd.Timedelta | None = None

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The forecasts; members of one start date are adjacent."""
        return tuple(
            Task(start, member)
            for start in range(len(self.starts))
            for member in range(self.num_members)
        )

    @property
    def written(self) -> tuple[int, ...]:
        """The steps that are written, from 1."""
        steps = range(1, self.num_steps + 1)
        zero = pd.Timedelta(0)
        return tuple(
            k
            for k in steps
            if not self.interval or self.lead(k) % self.interval == zero
        )

    def valid_time(self, start: int, step: int) -> np.datetime64:
        """Label of a step of a forecast; step 0 is the start."""
        starts = self.starts[start : start + 1]
        return shift_all(starts, step * self.timestep, self.calendar)[0]

    def lead(self, step: int) -> pd.Timedelta:
        lead: Any = step * self.timestep
        return lead

    def before(self, steps: int) -> np.ndarray:
        """All dates up to `steps` steps before each start date."""
        moved = [
            shift_all(self.starts, -k * self.timestep, self.calendar)
            for k in range(steps + 1)
        ]
        return np.unique(np.concatenate(moved))

    def groups(self, size: int, shard: tuple[int, int] = (1, 1)) -> list[list[Task]]:
        """The tasks that run together in a batch, of every count-th group."""
        tasks = self.tasks
        # They depend neither on the shard nor on which forecasts are done, so that a
        # forecast has the same values whenever it runs.
        groups = [[*tasks[i : i + size]] for i in range(0, len(tasks), size)]
        number, count = shard
        return groups[number - 1 :: count]


def make_schedule(
    inference: InferenceConfig,
    timestep: pd.Timedelta,
    calendar: str,
    *,
    init_times: Sequence[str] = (),
    num_steps: int | None = None,
    length: str | None = None,
) -> ForecastSchedule:
    """Builds the schedule from the `inference:` section or the command line."""
    starts = _starts(inference, calendar, init_times)
    if num_steps is None:
        full = length or forecast_length(inference)
        try:
            # The length of the section is rounded down, as in CREDIT.
            num_steps = int(duration(full) / timestep)
        except ValueError:
            raise ValueError(f"--length: {full!r} is no duration such as 10d") from None
        if num_steps < 1:
            raise ValueError(
                f"a forecast of {full} has no step of {duration_text(timestep)}; take "
                "a longer one"
            )
        if length is not None and num_steps * timestep != duration(length):
            raise ValueError(
                f"--length: {length} is no whole number of steps of "
                f"{duration_text(timestep)}; take "
                f"--steps {num_steps} or {num_steps + 1}"
            )
    if num_steps < 1:
        raise ValueError(f"--steps must be at least 1, got {num_steps}")
    text = inference.output.output_interval
    interval = None if text is None else duration(text)
    schedule = ForecastSchedule(
        starts, num_steps, timestep, calendar, inference.members, interval
    )
    if not schedule.written:
        raise ValueError(
            f"inference.output.output_interval: {text}: no lead time of {num_steps} "
            f"steps of {duration_text(timestep)} is a multiple of it, so that nothing "
            "would be written"
        )
    return schedule


def _starts(
    inference: InferenceConfig, calendar: str, init_times: Sequence[str]
) -> np.ndarray:
    if init_times:
        labels = set[pd.Timestamp]()
        for text in init_times:  # dates of the config are checked there
            try:
                labels.add(date_label(text))
            except ValueError as error:
                raise ValueError(
                    f"--init-time: {text!r} is no date such as 2001-06-01T00: {error}"
                ) from None
        starts = [label.to_datetime64() for label in sorted(labels)]
        return np.array(starts, "datetime64[ns]")
    batch, single = inference.batch_forecast, inference.single_forecast
    if inference.run_mode == "batch" and batch is not None:
        first, last = map(date_label, (batch.first_init_date, batch.last_init_date))
        if last < first:
            raise ValueError(
                f"inference.batch_forecast: last_init_date {last} is before "
                f"first_init_date {first}"
            )
        return time_range(first, last, duration(batch.init_interval), calendar)
    if inference.run_mode == "single" and single and single.start_datetime:
        return np.array([date_label(single.start_datetime)], "datetime64[ns]")
    is_batch = inference.run_mode == "batch"
    key = "batch_forecast" if is_batch else "single_forecast.start_datetime"
    raise ValueError(
        f"inference.{key}: missing; run_mode {inference.run_mode!r} needs it: "
        "add it, or give --init-time"
    )


def forecast_length(inference: InferenceConfig, default: str = DEFAULT_LENGTH) -> str:
    """The length of the forecasts of a section, or the default if it has none."""
    batch, single = inference.batch_forecast, inference.single_forecast
    if inference.run_mode == "single" and single and single.forecast_length:
        return single.forecast_length
    return batch.forecast_length if batch else default


def steps_of(length: str, timestep: pd.Timedelta, origin: str) -> int:
    """Number of steps of a duration."""
    try:
        full = duration(length)
    except ValueError as error:
        raise ValueError(f"{origin}: {error}") from None
    if full % timestep != duration("0h"):
        raise ValueError(
            f"{origin}: {length} is no multiple of the time step, "
            f"{duration_text(timestep)}"
        )
    return int(full / timestep)
