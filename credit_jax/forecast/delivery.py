"""Passes the results of a step to its destinations, and samples to processes."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from credit_jax.data.schedule import Task
from credit_jax.forecast.archive import Archive
from credit_jax.forecast.autoregression import StepFields
from credit_jax.io.errors import write_errors
from credit_jax.parallel.compiler import compile_program
from credit_jax.parallel.mesh.credit import local_dp_ranks, writing_dp_ranks
from credit_jax.parallel.mesh.device_mesh import MeshAxes
from credit_jax.parallel.placement import batch_spec
from credit_jax.parallel.processes.coordinator import of_all

# Key -> (level, lat, lon), the levels that are written.
HostFields: TypeAlias = dict[str, np.ndarray]
# Writes a part of a forecast.
WriteJob: TypeAlias = Callable[[], None]


class ForecastStore:
    """A destination of forecasts; this one is none, for those that are only scored."""

    first_step = 1  # that is written; 0 is the initial state

    def create(self) -> None:
        """Creates the parts that all forecasts share, unless they exist."""

    def writer(self, task: Task) -> TaskWriter:
        return TaskWriter(self, task)

    def write(self, task: Task, step: Any, fields: Any, /) -> None:
        """Writes a step of a forecast."""


@dataclass
class TaskWriter:
    """Writes one forecast to a store."""

    store: Any
    task: Task

    def add(self, step: int, fields: HostFields) -> Iterator[WriteJob]:
        """Adds a step, in order; yields the jobs that write complete parts."""
        yield partial(self.store.write, self.task, step, fields)

    def finish(self) -> Iterator[WriteJob]:
        """Yields the jobs that write the remaining parts after the last step."""
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
            with write_errors(self.archive.address, _ADVICE):
                write()
            self.close()

        return run

    def close(self) -> None:
        """Counts a part as written; after the last one the forecast is done."""
        with self._lock:
            self._open -= 1
            last = self._open == 0
        if last:
            with write_errors(self.archive.address, _ADVICE):
                self.archive.mark(self.task, dict(self.missing))


# Forecasts of a batch; None for one that is done or that another process writes.
Tasks = Sequence[TaskProgress | None]


@dataclass(eq=False)
class Share:
    """The samples of each group that this process reads and writes."""

    mesh: Mesh  # mesh of all processes
    size: int  # samples of a group
    num_rows: int  # rows of the grid, without those that pad it on the mesh

    def __post_init__(self) -> None:
        # The data-parallel ranks of this process, ascending. If a rank spans several
        # processes, the first one writes its samples.
        self.ranks = local_dp_ranks(self.mesh)
        each = self.size // MeshAxes.from_mesh(self.mesh).num_data
        # Positions of its samples in a group, rank after rank, and of those it writes.
        self.positions, self.written = (
            tuple(r * each + i for r in ranks for i in range(each))
            for ranks in (self.ranks, writing_dp_ranks(self.mesh))
        )

    def with_all_rows(self, outputs: StepFields) -> StepFields:
        """All-gathers rows that span several processes: a collective."""
        if all(field.is_fully_addressable for field in outputs.values()):
            return outputs
        return self._gather(outputs)

    @cached_property
    def non_finite(self) -> Callable[[StepFields], dict[str, Array]]:
        """Fields -> (batch,) counts of values that are NaN or infinite, everywhere."""

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
        sharding = NamedSharding(
            self.mesh, PartitionSpec(batch_spec(MeshAxes.from_mesh(self.mesh))[0])
        )

        def full(outputs: StepFields) -> StepFields:
            return {
                key: jax.lax.with_sharding_constraint(field, sharding)
                for key, field in outputs.items()
            }

        return compile_program(full, self.mesh)


def on_host(field: jax.Array) -> np.ndarray:
    """(batch, level, time, rows, lon) of this process, float32."""
    if field.is_fully_addressable:
        return np.asarray(field, np.float32)
    parts = {
        shard.index[0].start or 0: shard.data for shard in field.addressable_shards
    }
    arrays = [np.asarray(parts[start], np.float32) for start in sorted(parts)]
    return np.concatenate(arrays)


def added_up(counts: Mapping[str, int], names: list[str]) -> dict[str, int]:
    """Sums counts over all processes; returns those of `names` above 0, in order."""
    texts = of_all("counts", json.dumps(dict(counts)))
    total = sum((Counter(json.loads(text)) for text in texts), Counter[str]())
    return {name: total[name] for name in names if total[name]}
