"""Climatological fields, from a file in WeatherBench's layout or from training data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config.dates import date_label
from credit_jax.data.calendars import time_range
from credit_jax.data.opened_data import NamedData
from credit_jax.evaluation.grid_file import GridFile
from credit_jax.evaluation.references import Reference, open_dataset, open_reference
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.variables import LevelSelection, Variables

HOUR, DAY, MONTH = "hour", "dayofyear", "month"
_MEAN = "_mean"
# Sizes of dims whose labels are known without a coordinate.
_SIZES = {HOUR: 24, DAY: 366, MONTH: 12}
_DAYS_OF_LEAP_YEAR, _FEBRUARY, _LEAP_DAY = 366, 2, (2, 29)
# Limits of the times of the training period that are averaged, and of their memory.
MAX_TIMES, MAX_BYTES = 1000, 2 * 2**30


@dataclass(frozen=True, eq=False)
class FileClimatology:
    """Mean fields of a file, by `hour` and `dayofyear`, by `month`, or one for all."""

    file: GridFile

    @property
    def table(self) -> Variables:
        variables = self.file.variables
        means = {
            k.removesuffix(_MEAN): v for k, v in variables.items() if k.endswith(_MEAN)
        }
        return replace(self.file.table, table={**means, **variables})

    def read(
        self, time: np.datetime64, selection: LevelSelection
    ) -> Float[np.ndarray, "channel lat lon"]:
        variables = self.file.variables
        selected = {k if k in variables else k + _MEAN: v for k, v in selection.items()}
        # The label is that of its month and day, and the last hour at or before it. In
        # a file of 365 days 29 February is 28 February, and all later days are one
        # less.
        stamp: Any = pd.Timestamp(time)
        indices = {}
        for dim, labels in self.labels.items():
            day = stamp.day_of_year
            if stamp.is_leap_year and labels.max() < _DAYS_OF_LEAP_YEAR:
                day -= stamp.month > _FEBRUARY or (stamp.month, stamp.day) == _LEAP_DAY
            value = {HOUR: stamp.hour, DAY: day, MONTH: stamp.month}[dim]
            matches = labels <= value if dim == HOUR else labels == value
            if not matches.any():
                raise ValueError(
                    f"{self.file.where}: has no {dim} {value} of "
                    f"{stamp.isoformat()[:16]}; it has {_listed(labels)}"
                )
            indices[dim] = int(np.argmax(np.where(matches, labels, -1)))
        return self.file.channels(indices, selected)

    @cached_property
    def labels(self) -> dict[str, np.ndarray]:
        """The labels of its hours, days and months, which are different numbers."""
        dataset, by_dim = self.file.dataset, {}
        for dim in (name for name in (HOUR, DAY, MONTH) if name in dataset.dims):
            size = dataset.sizes[dim]
            if dim in dataset.coords:
                labels = np.asarray(dataset[dim].values)
            elif size == _SIZES[dim]:
                # All of a year or a day, which are in the order of time.
                labels = np.arange(size) + (dim != HOUR)
            else:
                raise ValueError(
                    f"{self.file.where}: the dim {dim} of size {size} has no "
                    f"coordinate; name its labels, from {0 if dim == HOUR else 1} on"
                )
            numbers = labels.dtype.kind in "iuf"
            if not numbers or np.unique(labels).size < size:
                raise ValueError(
                    f"{self.file.where}: the labels of {dim} are {_listed(labels)}, "
                    "expected different numbers"
                )
            by_dim[dim] = labels
        return by_dim


@dataclass(frozen=True, eq=False)
class TrainingClimatology:
    """The mean of the training period, by season, and by hour if memory allows."""

    reference: Reference
    times: np.ndarray  # those that are averaged
    by_hour: bool  # whether hours of the day are averaged separately
    selection: LevelSelection
    # (season, hour) -> (channel, lat, lon); (-1, -1) is the mean of all times.
    means: Mapping[tuple[int, int], np.ndarray]
    left_out: int = 0  # number of times that could not be read

    @property
    def table(self) -> Variables:
        parts = "season and hour" if self.by_hour else "season"
        first, last = (str(self.times[i])[:16] for i in (0, -1))
        text = (
            f"means by {parts} of {len(self.times)} times of the training period, "
            f"{first} to {last}"
        )
        if self.left_out:
            text += f", without {self.left_out} that cannot be read"
        return replace(self.reference.table, where=text)

    def read(
        self, time: np.datetime64, selection: LevelSelection
    ) -> Float[np.ndarray, "channel lat lon"]:
        assert selection == self.selection, "the means are of these"
        part = _part(time, self.by_hour)
        return self.means.get(part, self.means[_ALL])


_ALL = (-1, -1)


def open_climatology(path: str, open_files: OpenFiles | None = None) -> FileClimatology:
    """Opens the mean fields of a file."""
    dataset = open_dataset(path, "--climatology", open_files or OpenFiles())
    dims = [str(dim) for dim in dataset.dims]
    others = [dim for dim in (HOUR, DAY, MONTH) if dim in dims]
    climatology = FileClimatology(GridFile(path, dataset, tuple(others)))
    _ = climatology.labels  # an error before anything is computed
    return climatology


def _listed(labels: np.ndarray) -> str:
    displayed = ", ".join(str(label) for label in labels[:20].tolist())
    return displayed + (", ..." if labels.size > 20 else "")


def training_climatology(
    data: NamedData,
    choose: Callable[[Reference], LevelSelection],
    open_files: OpenFiles | None = None,
) -> TrainingClimatology:
    """Averages the training period of a data section; only sums are in memory."""
    ranges = [(date_label(first), date_label(last)) for first, last in data.data.ranges]
    period = np.array([end for ends in ranges for end in ends], "datetime64[ns]")
    files = open_files or OpenFiles()
    reference = open_reference(data, "the training data", period, files)
    step, calendar = data.data.time_step, reference.opened.calendar
    times = np.concatenate([time_range(*ends, step, calendar) for ends in ranges])
    # Of more times, as many evenly spaced ones are taken.
    spaced = np.linspace(0, len(times) - 1, min(len(times), MAX_TIMES))
    times = times[spaced.round().astype(int)]
    selection = choose(reference)
    skips = data.data.on_bad_sample == "skip"
    problems = [] if skips else reference.problems(times, [*selection])
    if problems:
        raise ValueError("; ".join(problems) + "; give --climatology FILE or none")
    hours = len({_part(time, by_hour=True)[1] for time in times})
    by_hour, used, fault = hours > 1, [], None
    # Sums and counts, of one number or of one a point.
    sums: defaultdict[tuple[int, int], Any] = defaultdict(float)
    counts: defaultdict[tuple[int, int], Any] = defaultdict(int)
    for time in times:
        try:
            fields = reference.read(time, selection)
        except (ValueError, OSError) as error:
            if not skips:
                raise
            fault = fault or error
            continue
        by_hour = by_hour and 4 * hours * 8 * fields.size < MAX_BYTES
        part = _part(time, by_hour)
        used.append(time)
        # Of data that skip bad samples, values that are not finite do not count.
        finite = np.isfinite(fields) if skips else np.True_
        sums[part] = sums[part] + np.where(finite, fields, 0).astype(float)
        counts[part] = counts[part] + finite.astype(int)
    if not used:
        raise ValueError(
            f"{reference.table.where}: none of {len(times)} times can be read; the "
            f"first: {fault}"
        )
    means = {k: _mean(total, counts[k]) for k, total in sums.items()}
    means[_ALL] = _mean(sum(sums.values()), sum(counts.values()))
    left_out = len(times) - len(used)
    return TrainingClimatology(
        reference, np.array(used), by_hour, selection, means, left_out
    )


def _mean(total: Any, count: Any) -> np.ndarray:
    """A mean over times, float32; NaN where there are no values."""
    with np.errstate(invalid="ignore"):
        return np.divide(total, count).astype(np.float32)


def _part(time: np.datetime64, by_hour: bool) -> tuple[int, int]:
    """Season of a time, and its hour or 0."""
    month, hour = (int(time.astype(f"datetime64[{u}]").astype(int)) for u in "Mh")
    return (month % 12 + 1) % 12 // 3, hour % 24 * by_hour
