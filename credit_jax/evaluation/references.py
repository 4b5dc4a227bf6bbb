"""What forecasts are compared with: a truth, and climatological fields.

A truth is a data section or a file; a climatology is a file in WeatherBench's layout,
or the mean of training data.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config import parse
from credit_jax.config.custom_objects import register_objects
from credit_jax.config.dates import date_label
from credit_jax.config.inference import InferenceDataConfig
from credit_jax.config.sources.source import FIELD_TYPES, OUTPUT_TYPES
from credit_jax.config.transforms import PreblocksConfig
from credit_jax.config.yaml_file import read_yaml
from credit_jax.data.calendars import near_times, rounding_of, time_range, to_labels
from credit_jax.data.opened_data import NamedData, OpenedData, open_data
from credit_jax.data.sources.source import field_key, variables_of
from credit_jax.evaluation.grid_file import GridFile
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.tree import by_key
from credit_jax.named_fields.variables import (
    LevelSelection,
    Variable,
    Variables,
    labeled_levels,
)
from credit_jax.transforms.base import variable_of

TIMES = ("time", "valid_time")


@dataclass(frozen=True, eq=False)
class FileReference:
    """A NetCDF file or a Zarr store with times."""

    file: GridFile
    time: str  # name of its dim

    @property
    def table(self) -> Variables:
        return self.file.table

    def notes(self, times: np.ndarray) -> list[str]:
        """Lists what is read otherwise than a file says, one line each."""
        indices = near_times(times, self._labels, self.file.where)
        note = rounding_of(times, self._labels[indices], self.file.where)
        return [] if note is None else [note]

    def problems(self, times: np.ndarray, names: Sequence[str]) -> list[str]:
        """Lists what is missing at some times, one line each."""
        labels = self._labels
        missing = times[near_times(times, labels, self.file.where) < 0]
        if not len(missing):
            return []
        return [
            f"{self.file.where} lacks {len(missing)} of {len(times)} times, the first "
            f"is {str(missing[0])[:16]}; it has {len(labels)} from "
            f"{str(labels.min())[:16]} to {str(labels.max())[:16]}"
        ]

    def read(
        self, time: np.datetime64, selection: LevelSelection
    ) -> Float[np.ndarray, "channel lat lon"]:
        labels = near_times(np.array([time]), self._labels, self.file.where)
        return self.file.channels({self.time: int(labels[0])}, selection)

    @cached_property
    def _labels(self) -> np.ndarray:
        return to_labels(self.file.dataset[self.time].values, self.file.where)


@dataclass(frozen=True, eq=False)
class DataReference:
    """The predicted variables of a data section."""

    where: str  # description of the section
    opened: OpenedData
    names: Mapping[str, str]
    moved: frozenset[str]

    @property
    def table(self) -> Variables:
        grid = self.opened.rows_and_columns()
        if grid is None:
            raise ValueError(
                f"{self.where}: no file has latitudes and longitudes of rows; --truth "
                "names data on the grid of the forecasts"
            )
        return Variables(self.where, self._known, *grid)

    def notes(self, times: np.ndarray) -> list[str]:
        notes = self.opened.notes()
        if self.moved:
            names = (variable_of(self.names.get(key, key)) for key in self.moved)
            notes.append(
                f"{self.where}: {', '.join(sorted(names))} are on other levels than "
                "the forecasts, or coefficients, before hybrid_level_interp or "
                "spectral_to_grid, and are not compared; --truth names data on the "
                "grid and levels of the model"
            )
        return notes

    def problems(self, times: np.ndarray, names: Sequence[str]) -> list[str]:
        opened, lines = self._only(names), list[str | None]()
        for name, source in opened.sources.items():
            labels = opened.clocks[name].input_times(times)[..., -1]
            kinds = source.config.variables.by_type
            lines += [opened.missing(name, kind, labels) for kind in kinds]
        return [f"{self.where}: {line}" for line in lines if line is not None]

    def read(
        self, time: np.datetime64, selection: LevelSelection
    ) -> Float[np.ndarray, "channel lat lon"]:
        fields = by_key(
            self._only([*selection]).read(
                FIELD_TYPES, lambda _, clock: clock.input_times(time)[-1:]
            )
        )
        arrays = []
        for name, levels in selection.items():
            array = fields[self._known[name].key][:, 0]
            arrays.append(array[[*levels]] if levels else array)
        return np.concatenate(arrays).astype(np.float32, copy=False)

    @cached_property
    def _known(self) -> dict[str, Variable]:
        """Name -> variable, from the first source that has it."""
        by_name: dict[str, Variable] = {}
        for source in self.opened.sources.values():
            units, stored = source.units(), source.axes().levels
            listed = source.config.level_values or stored or range(source.num_levels)
            about = {"units": getattr(stored, "unit", "")}
            levels, level_units = labeled_levels(listed, about)
            for kind in source.config.variables.by_type:
                for dims, variable in variables_of(source.config, kind):
                    key = field_key(source.name, kind, dims, variable)
                    if key in self.moved:
                        continue
                    described = Variable(key, units=units.get(key, ("",))[0])
                    if dims == "3d":
                        described = replace(
                            described, levels=levels, level_units=level_units
                        )
                    by_name.setdefault(variable_of(self.names.get(key, key)), described)
        return by_name

    def _only(self, names: Sequence[str]) -> OpenedData:
        """The data, restricted to some variables."""
        keys = {self._known[name].key for name in names}
        chosen: dict[str, Any] = {}
        for name, source in self.opened.sources.items():
            fields: dict[str, Any] = {}
            for kind, section in source.config.variables.by_type.items():
                by_dims = {
                    f"vars_{dims.upper()}": tuple(
                        v
                        for v in getattr(section, f"vars_{dims.upper()}")
                        if f"{name}/{kind}/{dims}/{v}" in keys
                    )
                    for dims in ("3d", "2d")
                }
                reduced = section.model_copy(update=by_dims)
                fields[kind] = reduced if any(by_dims.values()) else None
            variables = source.config.variables.model_copy(update=fields)
            if variables.by_type:
                config = source.config.model_copy(update={"variables": variables})
                chosen[name] = replace(source, config=config)  # type: ignore[type-var]
        return replace(self.opened, sources=chosen)


# A truth.
Reference = FileReference | DataReference


def open_truth(
    truth: str | NamedData, times: np.ndarray, open_files: OpenFiles | None = None
) -> Reference:
    """Opens the truth without reading fields."""
    files = open_files or OpenFiles()
    if isinstance(truth, NamedData):
        return open_reference(truth, "the data section", times, files)
    path = os.path.expandvars(truth)
    if Path(path).suffix in (".yml", ".yaml"):
        raw = read_yaml(path)
        if not isinstance(raw.get("data"), Mapping):
            raise ValueError(f"--truth: {path} has no data section")
        register_objects(raw, source=path)
        data = parse(InferenceDataConfig, raw["data"], "data", source=path)
        preblocks = parse(
            PreblocksConfig, raw.get("preblocks") or {}, "preblocks", source=path
        )
        return open_reference(NamedData.before(preblocks, data), path, times, files)
    dataset = open_dataset(path, "--truth", files)
    dims = [name for name in TIMES if name in dataset.dims]
    if not dims:
        raise ValueError(
            f"--truth: {path} has no dim {' or '.join(TIMES)}; it has "
            f"{', '.join(sorted(map(str, dataset.dims)))}"
        )
    time = dims[0]
    return FileReference(GridFile(path, dataset, (time,), (time,)), time)


def open_dataset(path: str, option: str, open_files: OpenFiles) -> Any:
    """Opens the data set of a path given by an option."""
    if "://" not in path and not Path(path).exists():
        raise FileNotFoundError(f"{option}: {path} does not exist")
    return open_files.dataset(path)


def open_reference(
    named: NamedData, origin: str, times: np.ndarray, open_files: OpenFiles
) -> DataReference:
    """Opens the predicted variables of a data section."""
    data = named.data
    first, last = (pd.Timestamp(time) for time in (times.min(), times.max()))
    sources = data.of_types(OUTPUT_TYPES).source.items()
    changes = {
        "start_datetime": str(first),
        "end_datetime": str(last + data.time_step),
        "date_ranges": None,
        "history_len": 1,
        "forecast_len": 1,
        "source": {k: x.model_copy(update={"history_len": None}) for k, x in sources},
    }
    opened = open_data(data.model_copy(update=changes), open_files)
    return DataReference(origin, opened, named.names, named.moved)


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


Climatology = FileClimatology | TrainingClimatology
_ALL = (-1, -1)


def open_climatology(path: str, open_files: OpenFiles) -> FileClimatology:
    """Opens the mean fields of a file."""
    dataset = open_dataset(path, "--climatology", open_files)
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
    files: OpenFiles,
) -> TrainingClimatology:
    """Averages the training period of a data section; only sums are in memory."""
    ranges = [(date_label(first), date_label(last)) for first, last in data.data.ranges]
    period = np.array([end for ends in ranges for end in ends], "datetime64[ns]")
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
