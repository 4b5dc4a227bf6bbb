"""The data set of a data section: samples of all sources at common times."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config.data import DataConfig
from credit_jax.config.sources.source import OUTPUT_TYPES
from credit_jax.data.clock import common_starts
from credit_jax.data.further_inputs import InputData, further_inputs
from credit_jax.data.opened_data import open_data
from credit_jax.data.schema import READ_ORDER, ChannelSchema
from credit_jax.data.sources.file_source import FileSource
from credit_jax.data.sources.source import SourceFields
from credit_jax.io.activity import activity
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.coordinates import Coordinates


@dataclasses.dataclass(frozen=True)
class Sample:
    """One step of a training sample, in physical units.

    Attributes:
        input: source -> key -> field (level, history_len, lat, lon); for steps after
            the first, only forcing, (level, 1, lat, lon).
        target: source -> key -> field (level, 1, lat, lon).
        input_time: last input time, datetime64[ns].
        target_time: time of the target, datetime64[ns].
    """

    input: dict[str, SourceFields]
    target: dict[str, SourceFields]
    input_time: np.datetime64
    target_time: np.datetime64


@dataclasses.dataclass(frozen=True)
class Dataset(InputData):
    """The samples of a data section, in order of time; fields are read on access.

    Attributes:
        starts: (samples,) datetime64[ns], the last input time of each sample.
    """

    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def num_steps(self) -> int:
        """Number of steps of a sample."""
        return self.data.forecast_len

    @property
    def skips_bad(self) -> bool:
        """Whether the reader is to replace samples that cannot be used."""
        return self.data.on_bad_sample == "skip"

    @property
    def replaces(self) -> bool:
        """Whether the reader is to replace some samples by others."""
        return self.skips_bad or self.data.on_outlier == "skip"

    def __getitem__(self, index: int) -> Sample:
        return self.step(index, 0)

    def step(
        self,
        index: int,
        step: int,
        rows: slice | None = None,
        out: Mapping[str, SourceFields] | None = None,
    ) -> Sample:
        """Reads one step of a sample: input and target; later, forcing and target.

        Args:
            index: index of the sample.
            step: index of the step, from 0.
            rows: latitude rows to read; None reads all.
            out: "input" or "target" -> key -> array that the field is read to.

        Raises:
            ValueError, OSError: a time is missing, or a file cannot be read.
        """
        start, out = self.starts_at(step)[index], out or {}
        inputs: dict[str, SourceFields] = {}
        for name, source in self.sources.items():
            times = self.clocks[name].input_times(start)
            inputs[name] = {}
            for kind in READ_ORDER if step == 0 else READ_ORDER[:1]:
                read_times = times if step == 0 else times[-1:]
                to = out.get("input")
                inputs[name] |= source.read(kind, read_times, rows, to)
        targets, target_time = self.target(index, step, rows, out.get("target"))
        return Sample(inputs, targets, start, target_time)

    def target(
        self,
        index: int,
        step: int = 0,
        rows: slice | None = None,
        out: SourceFields | None = None,
    ) -> tuple[dict[str, SourceFields], np.datetime64]:
        """Reads the target of a step of a sample, in channel order, and its time."""
        targets: dict[str, SourceFields] = {}
        for name, source in self.sources.items():
            times = self.clocks[name].target_times(self.starts_at(step)[index])
            targets[name] = {}
            for kind in OUTPUT_TYPES:
                targets[name] |= source.read(kind, times, rows, out)
        return targets, self.target_time(index, step)

    def starts_at(self, step: int) -> np.ndarray:
        """(samples,) datetime64[ns], the last input time of a step of each sample."""
        return self._starts[step]

    @cached_property
    def _starts(self) -> list[np.ndarray]:
        return [self.shifted(self.starts, step) for step in range(self.num_steps)]

    def target_array(self, index: int) -> Float[np.ndarray, "channel 1 lat lon"]:
        """Reads the target of a sample, with all variables concatenated."""
        fields, _ = self.target(index)
        return np.concatenate(
            [x for source_fields in fields.values() for x in source_fields.values()]
        )

    def target_time(self, index: int, step: int = 0) -> np.datetime64:
        """Time of the target of a step, datetime64[ns]."""
        return self.time(self.starts_at(step)[index], 1)

    def window(self, name: str, field_type: str) -> np.ndarray:
        """(samples, times) at which the samples read a field type of a source."""
        clock, windows = self.clocks[name], []
        for step in range(self.num_steps):
            starts = self.starts_at(step)
            if field_type != "diagnostic" and step == 0:
                windows.append(clock.input_times(starts))
            elif field_type == "dynamic_forcing":
                windows.append(clock.input_times(starts)[..., -1:])
            if field_type in OUTPUT_TYPES:
                windows.append(clock.target_times(starts))
        return np.concatenate(windows, axis=-1)

    def keeping(self, window: pd.Timedelta) -> "Dataset":
        """Returns the data set whose files' fields of two windows of time are kept."""
        data = self.data
        steps = data.history_len + data.forecast_len
        sources = {}
        for name, source in self.sources.items():
            if isinstance(source, FileSource):
                step = source.config.time_step or data.time_step
                source = source.keeping(2 * math.ceil(window / step) + steps)
            sources[name] = source
        return dataclasses.replace(self, sources=sources)

    @property
    def latitude(self) -> np.ndarray:
        """(lat,) degrees, in the order of the files.

        Raises:
            ValueError: no file has a latitude coordinate.
        """
        for grid in self.grids():
            if grid.latitude is not None:
                return grid.latitude.astype(np.float64)
        raise ValueError("no file of data.source has a latitude coordinate")

    @property
    def longitude(self) -> np.ndarray:
        """(lon,) degrees, in the order of the files.

        Raises:
            ValueError: no file has a longitude coordinate.
        """
        for grid in self.grids():
            if grid.longitude is not None:
                return grid.longitude.astype(np.float64)
        raise ValueError("no file of data.source has a longitude coordinate")


@activity("opening the data")
def open_dataset(
    data: DataConfig,
    open_files: OpenFiles | None = None,
    *,
    like: Coordinates | None = None,
    shared_grid: bool = True,
) -> Dataset:
    """Opens the files of a data section, without reading fields.

    Args:
        data: the data section.
        open_files: cache of open files, shared with other data sets.
        like: coordinates of a run, at which fields are read; None takes those of the
            first file.
        shared_grid: whether the sources of x have one grid.

    Raises:
        FileNotFoundError, ValueError: see `open_data` and `common_starts`.
    """
    opened = open_data(data, open_files, like=like, shared_grid=shared_grid)
    starts = common_starts(data, opened.clocks, opened.calendar)
    x = opened.only(data.sources_of())
    num_levels = {name: source.num_levels for name, source in x.sources.items()}
    axes = {name: source.axes() for name, source in x.sources.items()}
    schema = ChannelSchema.from_config(data, num_levels, axes=axes)
    further = further_inputs(opened)
    dataset = Dataset(**vars(x), starts=starts, schema=schema, further=further)
    return dataclasses.replace(dataset, starts=_available(dataset))


def _available(dataset: Dataset) -> np.ndarray:
    """The starts for which every source has the whole window."""
    keep = np.ones(len(dataset), dtype=bool)
    for name, source in dataset.sources.items():
        for kind in source.config.variables.by_type:
            if kind != "static":
                keep &= source.available(dataset.window(name, kind)).all(axis=-1)
    if dataset.further is not None:
        for step in range(dataset.num_steps):
            keep &= dataset.further.available(dataset.starts_at(step))
    if not keep.any():
        raise ValueError(
            f"no sample has all its times: the sources {', '.join(dataset.sources)} "
            "left out all of them"
        )
    return dataset.starts[keep]


def collate(samples: Sequence[Sample]) -> dict[str, Any]:
    """Stacks samples to a nested batch.

    Args:
        samples: samples of one batch, in order.

    Returns:
        {"input": {source: {key: field}}, "target": ..., "input_times", "target_times"},
        where fields are (batch, level, time, lat, lon), and times (batch,).
    """
    return {
        "input": _stack([sample.input for sample in samples]),
        "target": _stack([sample.target for sample in samples]),
        "input_times": np.stack([sample.input_time for sample in samples]),
        "target_times": np.stack([sample.target_time for sample in samples]),
    }


def _stack(
    parts: Sequence[Mapping[str, SourceFields]],
) -> dict[str, dict[str, np.ndarray]]:
    return {
        source: {
            key: _stack_arrays([part[source][key] for part in parts]) for key in fields
        }
        for source, fields in parts[0].items()
    }


def _stack_arrays(arrays: list[np.ndarray]) -> np.ndarray:
    return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)
