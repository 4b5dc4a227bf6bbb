"""Passes the results of a step to its destinations, and samples to processes."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from credit_jax.data.schedule import ForecastSchedule, Task
from credit_jax.forecast.archive import Archive
from credit_jax.forecast.autoregression import StepFields
from credit_jax.io.errors import write_errors
from credit_jax.io.workers import Workers
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.mesh.credit import local_dp_ranks, writing_dp_ranks
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.placement import batch_spec
from credit_jax.parallel.processes.coordinator import of_all

# Key -> (level, lat, lon), the levels that are written.
HostFields: TypeAlias = dict[str, np.ndarray]
# Writes a part of a forecast.
WriteJob: TypeAlias = Callable[[], None]


@runtime_checkable
class TaskWriter(Protocol):
    """Writes one forecast."""

    def add(self, step: int, fields: HostFields) -> Iterator[WriteJob]:
        """Adds a step, in order; yields the jobs that write complete parts."""
        ...

    def finish(self) -> Iterator[WriteJob]:
        """Yields the jobs that write the remaining parts after the last step."""
        ...


@runtime_checkable
class ForecastStore(Protocol):
    """A destination of forecasts."""

    @property
    def first_step(self) -> int:
        """The first step that is written; 0 is the initial state."""
        ...

    def create(self) -> None:
        """Creates the parts that all forecasts share, unless they exist."""
        ...

    def writer(self, task: Task) -> TaskWriter:
        """Returns a writer of one forecast."""
        ...


class NoStore:
    """Writes no fields: the forecasts are only scored."""

    first_step = 1

    def create(self) -> None:
        """See `ForecastStore.create`."""

    def writer(self, task: Task) -> NoWriter:
        """See `ForecastStore.writer`."""
        return NoWriter()


class NoWriter:
    """Writes nothing."""

    def add(self, step: int, fields: HostFields) -> Iterator[WriteJob]:
        """See `TaskWriter.add`."""
        yield from ()

    def finish(self) -> Iterator[WriteJob]:
        """See `TaskWriter.finish`."""
        yield from ()


_ADVICE = "--resume makes the forecasts that are missing"


class NonFiniteForecastError(RuntimeError):
    """A forecast has values that are NaN or infinite."""


@dataclass
class TaskProgress:
    """Marks a forecast as done when its last file is written."""

    archive: Archive  # the record of forecasts
    task: Task
    writer: TaskWriter  # writes the forecast
    # Values that were not finite, by variable.
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
    """Passes the results of forecasts to their writers."""

    files: Workers  # threads that write
    schedule: ForecastSchedule  # start dates and lead times, for error messages
    # Whether values that are not finite are written as missing and counted; otherwise
    # they are an error.
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


@dataclass(frozen=True, eq=False)
class Share:
    """The samples of each group that this process reads and writes.

    A process reads the samples of the data-parallel ranks that it has devices of. If a
    rank spans several processes, the first one writes its samples.
    """

    mesh: Mesh  # mesh of all processes
    size: int  # samples of a group
    num_rows: int  # rows of the grid, without those that pad it on the mesh

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The data-parallel ranks of this process, ascending."""
        return local_dp_ranks(self.mesh)

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """Positions of its samples in a group, rank after rank."""
        return self._positions(self.ranks)

    @cached_property
    def written(self) -> frozenset[int]:
        """Positions of the samples that this process writes."""
        return frozenset(self._positions(writing_dp_ranks(self.mesh)))

    def _positions(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        each = self.size // self._axes.num_data
        return tuple(r * each + i for r in ranks for i in range(each))

    def with_all_rows(self, outputs: StepFields) -> StepFields:
        """All-gathers the rows of the fields, if they span several processes.

        A collective: every process must call it, in the same order.
        """
        if all(field.is_fully_addressable for field in outputs.values()):
            return outputs
        return self._gather(outputs)

    def non_finite(self, outputs: StepFields) -> dict[str, Array]:
        """Key -> (batch,) counts of values that are NaN or infinite, on all devices."""
        return self._count(outputs)

    def on_host(self, outputs: StepFields) -> dict[str, np.ndarray]:
        """The samples of this process in the result of `with_all_rows`.

        Returns:
            Key -> (batch, level, lat, lon) float32, without padding rows.
        """
        return {k: _local(x)[:, :, 0, : self.num_rows] for k, x in outputs.items()}

    @cached_property
    def _axes(self) -> MeshAxes:
        return MeshAxes.from_mesh(self.mesh)

    @cached_property
    def _count(self) -> Any:
        def count(outputs: StepFields) -> dict[str, Array]:
            return {
                key: jax.lax.with_sharding_constraint(
                    (~jnp.isfinite(field[..., : self.num_rows, :])).sum((1, 2, 3, 4)),
                    NamedSharding(self.mesh, PartitionSpec()),
                )
                for key, field in outputs.items()
            }

        return compile_program(count, self.mesh)

    @cached_property
    def _gather(self) -> Any:
        sharding = NamedSharding(self.mesh, PartitionSpec(batch_spec(self._axes)[0]))

        def full(outputs: StepFields) -> StepFields:
            return {
                key: jax.lax.with_sharding_constraint(field, sharding)
                for key, field in outputs.items()
            }

        return compile_program(full, self.mesh)


def _local(field: jax.Array) -> np.ndarray:
    if field.is_fully_addressable:
        return np.asarray(field, np.float32)
    parts = {
        shard.index[0].start or 0: shard.data for shard in field.addressable_shards
    }
    arrays = [np.asarray(parts[start], np.float32) for start in sorted(parts)]
    return np.concatenate(arrays)


def added_up(counts: Mapping[str, int], names: list[str]) -> dict[str, int]:
    """Sums counts over all processes; returns those above 0.

    Args:
        counts: counts of this process.
        names: names of all possible counts, the same in every process.
    """
    texts = of_all("counts", json.dumps(dict(counts)))
    total = sum((Counter(json.loads(text)) for text in texts), Counter[str]())
    return {name: total[name] for name in names if total[name]}
