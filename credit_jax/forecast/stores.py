"""Interfaces of the destinations that campaigns write forecasts to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np

from credit_jax.data.schedule import Task

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
