"""Passes the results of a step, on the host, to the files of its forecasts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from credit_jax.data.schedule import ForecastSchedule, Task
from credit_jax.forecast.archive import Archive
from credit_jax.forecast.stores import TaskWriter, WriteJob
from credit_jax.io.errors import write_errors
from credit_jax.io.workers import Workers

_ADVICE = "--resume makes the forecasts that are missing"


class NonFiniteForecastError(RuntimeError):
    """A forecast has values that are NaN or infinite."""


@dataclass
class TaskProgress:
    """Marks a forecast as done when its last file is written.

    Attributes:
        archive: the record of forecasts.
        task: the forecast.
        writer: writes the forecast.
        missing: values that were not finite, by variable.
    """

    archive: Archive
    task: Task
    writer: TaskWriter
    missing: Counter = field(default_factory=Counter)
    _open: int = 1
    _lock: Any = field(default_factory=threading.Lock)

    def job(self, write: WriteJob) -> WriteJob:
        """Wraps a job that writes a part of the forecast, and counts it."""
        with self._lock:
            self._open += 1

        def run() -> None:
            with write_errors(self.archive.folder, _ADVICE):
                write()
            self.close()

        return run

    def close(self) -> None:
        """Counts a part as written; after the last one the forecast is done."""
        with self._lock:
            self._open -= 1
            last = self._open == 0
        if last:
            with write_errors(self.archive.folder, _ADVICE):
                self.archive.mark(self.task, dict(self.missing))


# Forecasts of a batch; None for one that is done or that another process writes.
Tasks = Sequence[TaskProgress | None]


@dataclass(frozen=True)
class Delivery:
    """Passes the results of forecasts to their writers.

    Attributes:
        files: threads that write.
        schedule: start dates and lead times, for error messages.
        fill_nan: whether values that are not finite are written as missing and counted;
            otherwise they are an error.
    """

    files: Workers
    schedule: ForecastSchedule
    fill_nan: bool

    def deliver(
        self,
        tasks: Tasks,
        step: int,
        counts: Mapping[str, np.ndarray],
        fields: Mapping[str, np.ndarray],
    ) -> None:
        """Passes a step of every forecast to its writer.

        Args:
            tasks: forecasts of the batch.
            step: 0 is the initial state.
            counts: key -> (batch,) numbers of values that are not finite.
            fields: key -> (batch, level, lat, lon); those that are written.

        Raises:
            NonFiniteForecastError: values are not finite, and `fill_nan` is False.
        """
        for index, task in enumerate(tasks):
            if task is None:
                continue
            bad = {key: int(count[index]) for key, count in counts.items()}
            bad = {key: count for key, count in bad.items() if count}
            for key, count in bad.items():
                self._report(key.split("/")[-1], count, step, task)
            values = {key: array[index] for key, array in fields.items()}
            for key in bad.keys() & values.keys():
                finite = np.isfinite(values[key])
                values[key] = np.where(finite, values[key], np.float32(np.nan))
            for job in task.writer.add(step, values):
                self.files.submit(task.job(job))

    def finish(self, tasks: Tasks) -> None:
        """Writes what remains after the last step, then marks forecasts as done."""
        for task in tasks:
            if task is not None:
                for job in task.writer.finish():
                    self.files.submit(task.job(job))
                task.close()

    def _report(self, name: str, count: int, step: int, task: TaskProgress) -> None:
        """Counts values that are not finite, or raises."""
        if not self.fill_nan:
            raise NonFiniteForecastError(
                f"{name} has {count} values that are NaN or infinite at step {step} "
                f"(lead {self.schedule.lead(step)}) of the forecast from "
                f"{str(self.schedule.starts[task.task.start])[:16]}, member "
                f"{task.task.member}; --nan fill writes them as missing"
            )
        task.missing[name] += count
