"""Reads the initial states and forcing of forecasts, as inputs of `ForecastStep`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from jax.sharding import Mesh

from credit_jax.data.channel_checks import ChannelChecks, further_arrays
from credit_jax.data.forecast_data import ForecastData
from credit_jax.data.schedule import ForecastSchedule, Task
from credit_jax.data.schema import ChannelSchema
from credit_jax.data.sources.source import SourceFields
from credit_jax.data.values import BadValuesError, check_fields
from credit_jax.named_fields.tree import by_key
from credit_jax.parallel.placement import place_batch
from credit_jax.transforms import (
    FORCING,
    PREBLOCKS,
    FieldTree,
    Phase,
    Pipeline,
    after_aligned,
    constant_fields,
    initial_entries,
    units_after,
)

# Named fields in physical units, (batch, level, time, lat, lon) each, and the tasks.
Perturb = Callable[[FieldTree, Sequence[Task]], FieldTree]


@dataclass(frozen=True)
class FirstStep:
    """The input of the first step of some forecasts.

    Attributes:
        arrays: "x", "static", and "x_physical" and "ic_raw" if transforms need them;
            the further inputs of the model by name.
        fields: key -> (batch, level, lat, lon), the initial state in physical units.
    """

    arrays: dict[str, Any]
    fields: dict[str, np.ndarray]


@dataclass(frozen=True)
class ForecastReader:
    """Reads the input of forecasts on the host.

    Attributes:
        data: the files.
        pipeline: transforms, whose preblocks make x.
        schedule: start dates of the tasks.
        schema: the channels of x.
        perturb: changes the initial states of ensemble members; None changes nothing.
        finite: whether initial states must be finite.
        state: date of the only initial state that is read; forecasts from other dates
            begin with other states, for which it stands in. None reads one for each.
    """

    data: ForecastData
    pipeline: Pipeline
    schedule: ForecastSchedule
    schema: ChannelSchema
    perturb: Perturb | None = None
    finite: bool = True
    state: np.datetime64 | None = None

    @property
    def units(self) -> dict[str, tuple[str, str]]:
        """Key of a channel's variable -> its unit and file, those that are known."""
        return units_after(self.pipeline, self.data.units())

    def first(self, tasks: Sequence[Task]) -> FirstStep:
        """Reads the initial states of some tasks, stacked along the batch dim.

        Raises:
            ValueError: a time or a variable is missing, or a value is not finite.
        """
        starts = self._starts(tasks)
        return self.at(starts, tasks, self.perturb)

    def at(
        self,
        starts: Sequence[np.datetime64],
        tasks: Sequence[Task] = (),
        perturb: Perturb | None = None,
    ) -> FirstStep:
        """Reads the states at some dates, each perturbed like that of its task."""
        raw: FieldTree = {
            "input": _stacked(self._initial(starts)),
            "input_times": np.array(starts),
        }
        done = self.pipeline.run(Phase.INITIAL, raw)
        aligned = self.pipeline.aligned(done, Phase.BEFORE_STEP)
        steps = self.pipeline
        if perturb is not None:
            # Perturbations have the names and the grid of the fields of a step.
            aligned = {**aligned, "input": perturb(aligned["input"], tasks)}
            steps = after_aligned(steps)
            done = steps.with_input_names(aligned)
        physical = aligned["input"]
        x = steps.run(Phase.BEFORE_STEP, done)["x"]
        if self.state is not None and {*starts} != {self.state}:
            # The state was checked at its date.
            self._dynamic_forcing(starts, 0)
        elif self.finite:
            with self._files_named():
                check_raw = partial(_check_raw, starts, raw["input"])
                self._checks.check(x, None, np.array(starts), check_raw)
        entries = initial_entries(self.pipeline, raw["input"], physical)
        # Copied, as the step donates the buffer of x_physical.
        fields = {k: x[:, :, -1].copy() for k, x in by_key(physical).items()}
        arrays = {"x": x, "static": constant_fields(physical), **entries}
        return FirstStep({**arrays, **self._further(starts, 0)}, fields)

    def forcing(self, tasks: Sequence[Task], step: int) -> FieldTree:
        """Reads the input of the step after `step` for some tasks; see `forcing_at`."""
        return self.forcing_at(self._starts(tasks), step)

    def forcing_at(self, starts: Sequence[np.datetime64], step: int) -> FieldTree:
        """Reads the input of the step after `step` for forecasts from some dates.

        Returns:
            "forcing", the dynamic forcing at the end of the step, and the further
            inputs of the model by name.
        """
        forcing = self._dynamic_forcing(starts, step)
        return {FORCING: forcing, **self._further(starts, step)}

    def _dynamic_forcing(self, starts: Sequence[np.datetime64], step: int) -> FieldTree:
        """The dynamic forcing at the end of a step, checked."""
        once = {
            start: self.data.forcing(start, step) for start in dict.fromkeys(starts)
        }
        fields = _stacked([once[start] for start in starts])
        forcing = self.pipeline.aligned({"input": fields}, *PREBLOCKS)["input"]
        if self.finite:
            times = np.array([self.data.time(start, step) for start in starts])
            names = [f"step {step} of the forecast from {str(t)[:16]}" for t in starts]
            with self._files_named():
                check_raw = partial(_check_raw, times, fields)
                self._checks.check_forcing(forcing, times, check_raw, names)
        return forcing

    def _further(
        self, starts: Sequence[np.datetime64], step: int
    ) -> dict[str, np.ndarray]:
        """The inputs of the model besides x, for the step after `step`."""
        further = self.data.further
        if further is None:
            return {}
        times = [self.data.time(start, step) for start in starts]
        with self._files_named():
            by_time = {
                t: further_arrays(further, [t], self.pipeline, noted=self._noted)
                for t in set(times)
            }
        names = further.names
        return {k: np.concatenate([by_time[t][k] for t in times]) for k in names}

    @cached_property
    def _checks(self) -> ChannelChecks:
        read = self.data.schema
        return ChannelChecks(self.data, self.pipeline, self.schema, read, self._noted)

    @property
    def _noted(self) -> bool:
        """Whether outliers are notes: no other forecast stands for one."""
        return self.data.data.on_outlier != "raise"

    @contextmanager
    def _files_named(self) -> Iterator[None]:
        """Adds their file to errors of values."""
        try:
            yield
        except BadValuesError as error:
            raise error.in_file(self.data.path_of) from error

    def stream(
        self,
        groups: Sequence[Sequence[Task]],
        num_steps: int,
        mesh: Mesh,
        ranks: Sequence[int] | None = None,
    ) -> Iterator[Any]:
        """Yields the input of every step of some groups, in order, placed on the mesh.

        For each group these are a `FirstStep`, then the forcing at the end of every
        step but the last.

        Args:
            groups: the tasks of this process's data-parallel ranks, rank after rank.
            num_steps: number of steps of each forecast.
            mesh: mesh of all processes.
            ranks: these ranks; None for all.
        """
        for tasks in groups:
            first = self.first(tasks)
            placed = place_batch(first.arrays, mesh, local_dp_ranks=ranks)
            yield FirstStep(placed, first.fields)
            for step in range(1, num_steps):
                forcing = self.forcing(tasks, step)
                yield place_batch(forcing, mesh, local_dp_ranks=ranks)

    def _initial(
        self, starts: Sequence[np.datetime64]
    ) -> list[dict[str, SourceFields]]:
        """The fields of `ForecastData.initial` of each date; each is read once."""
        read = partial(self.data.initial, state=self.state)
        once = {start: read(start) for start in dict.fromkeys(starts)}
        return [once[start] for start in starts]

    def _starts(self, tasks: Sequence[Task]) -> list[np.datetime64]:
        return [self.schedule.starts[task.start] for task in tasks]


def _check_raw(
    times: Sequence[np.datetime64] | np.ndarray,
    fields: Mapping[str, Mapping[str, np.ndarray]],
) -> None:
    """Checks fields (batch, level, time, lat, lon) for fill values."""
    for number, time in enumerate(times):
        source_fields = {
            source: {key: x[number] for key, x in by_key.items()}
            for source, by_key in fields.items()
        }
        check_fields(source_fields, time)


def _stacked(
    parts: Sequence[Mapping[str, SourceFields]],
) -> dict[str, dict[str, np.ndarray]]:
    """Fields of several dates on a batch dim."""
    return {
        source: {
            key: np.stack([part[source][key] for part in parts])
            for key in source_fields
        }
        for source, source_fields in parts[0].items()
    }
