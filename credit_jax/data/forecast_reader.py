"""Reads the initial states and forcing of forecasts, as inputs of `ForecastStep`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import Mesh

from credit_jax.data.forecast_data import ForecastData
from credit_jax.data.further_arrays import further_arrays
from credit_jax.data.schedule import Schedule, Task
from credit_jax.data.schema import ChannelSchema
from credit_jax.data.sources.source import SourceFields
from credit_jax.data.values import (
    BadValuesError,
    Outlier,
    OutlierError,
    check_fields,
    check_finite,
    check_forcing,
    note_once,
    outlier_error,
)
from credit_jax.parallel.placement import place_batch
from credit_jax.transforms import (
    FORCING,
    PREBLOCKS,
    FieldTree,
    Phase,
    Pipeline,
    constant_fields,
    initial_entries,
    newest,
)
from credit_jax.transforms.pre.fill_values import FillValues

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
    """

    data: ForecastData
    pipeline: Pipeline
    schedule: Schedule
    schema: ChannelSchema
    perturb: Perturb | None = None
    finite: bool = True

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
        done = self.pipeline.initial(raw)
        aligned = self.pipeline.aligned(done, Phase.BEFORE_STEP)
        steps = self.pipeline
        if perturb is not None:
            # Perturbations have the names and the grid of the fields of a step.
            aligned = {**aligned, "input": perturb(aligned["input"], tasks)}
            steps = steps.after_aligned()
            done = steps.named_as_before(aligned)
        physical = aligned["input"]
        x = steps.before_step(done)["x"]
        if self.finite:
            self._check(x, starts)
        entries = initial_entries(self.pipeline, raw["input"], physical)
        now = newest(physical)
        # Copied, as the step donates the buffer of x_physical.
        fields = {
            k: f[:, :, 0].copy()
            for source_fields in now.values()
            for k, f in source_fields.items()
        }
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
        once = {
            start: self.data.forcing(start, step) for start in dict.fromkeys(starts)
        }
        fields = _stacked([once[start] for start in starts])
        if self.finite and not self._fills:
            with self._files_named():
                times = [self.data.time(start, step) for start in starts]
                check_forcing(fields, starts, times, step)
        forcing = self.pipeline.aligned({"input": fields}, *PREBLOCKS)["input"]
        return {FORCING: forcing, **self._further(starts, step)}

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
                t: further_arrays(further, [t], self.pipeline) for t in set(times)
            }
        names = further.names
        return {k: np.concatenate([by_time[t][k] for t in times]) for k in names}

    def _check(self, x: np.ndarray, starts: Sequence[np.datetime64]) -> None:
        """Checks x of the initial states as training does.

        Raises:
            BadValuesError: a value is not finite, or a fill value.
        """
        with self._files_named():
            try:
                normalized = self.pipeline.normalized(self.schema.as_read())
                plateau, outliers = check_finite(
                    x, None, np.array(starts), self.schema, normalized
                )
            except BadValuesError:
                self._check_raw(starts)  # raises a more specific error, if it can
                raise
            if plateau:
                self._check_raw(starts)
            for outlier in outliers:
                self._note(outlier, starts, x.shape[2])

    def _note(
        self, outlier: Outlier, starts: Sequence[np.datetime64], history: int
    ) -> None:
        """Names an outlier of an initial state in the log."""
        sample, time, row, column = outlier.place
        step, start = time + 1 - history, starts[sample]
        grid = self.pipeline.grid or self.data.coordinates()
        axes = grid.latitude, grid.longitude
        label = self.data.time(start, step)
        error = outlier_error(outlier, self.schema, (row, column), axes, label)
        error = OutlierError(str(error), error.key, start, step)
        note_once(error.in_file(self.data.path_of))  # type: ignore[arg-type]

    def _check_raw(self, starts: Sequence[np.datetime64]) -> None:
        for start, fields in zip(starts, self._initial(starts), strict=True):
            check_fields(fields, start)

    @property
    def _fills(self) -> bool:
        """Whether a preblock fills missing values."""
        return any(isinstance(p.transform, FillValues) for p in self.pipeline.preblocks)

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
        once = {start: self.data.initial(start) for start in dict.fromkeys(starts)}
        return [once[start] for start in starts]

    def _starts(self, tasks: Sequence[Task]) -> list[np.datetime64]:
        return [self.schedule.starts[task.start] for task in tasks]


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
