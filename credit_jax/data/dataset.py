"""The data set of a data section: samples of all sources at common times."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config.data import DataConfig
from credit_jax.config.sources.source import MAIN_INPUT, OUTPUT_TYPES
from credit_jax.data.clock import common_starts
from credit_jax.data.opened_data import InputData, open_data, schemas_of
from credit_jax.data.schema import READ_ORDER
from credit_jax.data.sources.file_source import FileSource
from credit_jax.data.sources.source import BadSampleError, SourceFields
from credit_jax.io.activity import activity
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.coordinates import Coordinates
from credit_jax.transforms import Grid


@dataclasses.dataclass(frozen=True)
class Sample:
    """One step of a training sample, in physical units."""

    # By source and key, field (level, history_len, lat, lon) in the input of the first
    # step, (level, 1, lat, lon) in the forcing of later ones and in the target.
    input: dict[str, SourceFields]
    target: dict[str, SourceFields]
    input_time: np.datetime64  # the last one
    target_time: np.datetime64


@dataclasses.dataclass(frozen=True)
class Dataset(InputData):
    """The samples of a data section, in order of time; fields are read on access."""

    starts: np.ndarray  # (samples,) datetime64[ns], the last input time of each

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def num_steps(self) -> int:
        return self.data.forecast_len

    @property
    def replaces(self) -> bool:
        """Whether the reader is to replace some samples by others."""
        return self.data.on_bad_sample == "skip" or self.data.on_outlier == "skip"

    def __getitem__(self, index: int) -> Sample:
        return self.step(index, 0)

    def step(
        self,
        index: int,
        step: int,
        rows: slice | None = None,
        out: Mapping[str, SourceFields] | None = None,
    ) -> Sample:
        """Reads one step of a sample: input and target; later, forcing and target."""
        start, out = self.step_starts[step][index], out or {}
        kinds, first = (READ_ORDER, 0) if step == 0 else (READ_ORDER[:1], -1)
        inputs = self.read(
            kinds,
            lambda _, clock: clock.input_times(start)[first:],
            rows,
            out.get("input"),
        )
        targets = self.target(index, step, rows, out.get("target"))
        return Sample(inputs, targets, start, self.target_time(index, step))

    def target(
        self,
        index: int,
        step: int = 0,
        rows: slice | None = None,
        out: SourceFields | None = None,
    ) -> dict[str, SourceFields]:
        """Reads the target of a step of a sample, in channel order."""
        start = self.step_starts[step][index]
        return self.read(
            OUTPUT_TYPES, lambda _, clock: clock.target_times(start), rows, out
        )

    @cached_property
    def step_starts(self) -> list[np.ndarray]:
        """Of each step (samples,) datetime64[ns], the last input times."""
        return [self.shifted(self.starts, step) for step in range(self.num_steps)]

    def target_time(self, index: int, step: int = 0) -> np.datetime64:
        return self.time(self.step_starts[step][index], 1)

    def window(self, name: str, field_type: str) -> np.ndarray:
        """(samples, times) at which the samples read a field type of a source."""
        clock, windows = self.clocks[name], []
        for step in range(self.num_steps):
            starts = self.step_starts[step]
            if self.sources[name].config.input != MAIN_INPUT or (
                field_type != "diagnostic" and step == 0
            ):
                windows.append(clock.input_times(starts))
            elif field_type == "dynamic_forcing":
                windows.append(clock.input_times(starts)[..., -1:])
            if field_type in OUTPUT_TYPES:
                windows.append(clock.target_times(starts))
        return np.concatenate(windows, axis=-1)

    def keeping(self, window: pd.Timedelta) -> "Dataset":
        """Returns the data set whose files' fields of two windows of time are kept."""
        data, sources = self.data, dict(self.sources)
        steps = data.history_len + data.forecast_len
        for name, source in self.x.items():
            if isinstance(source, FileSource):
                step = source.config.time_step or data.time_step
                sources[name] = source.keeping(2 * math.ceil(window / step) + steps)
        return dataclasses.replace(self, sources=sources)

    def degrees(self, kind: str) -> Float[np.ndarray, " _"]:
        """The "latitude" of rows or "longitude" of columns, in the files' order."""
        for grid in self.grids():
            if (values := getattr(grid, kind)) is not None:
                return values.astype(np.float64)
        raise ValueError(f"no file of data.source has a {kind} coordinate")

    def check(
        self, grid: tuple[int, int] | None = None, *, shared_grid: bool = True
    ) -> list[str]:
        """Checks times, grids, variables of all files; notes, also of bad samples."""
        # Preblocks that regrid allow grids that differ.
        if shared_grid:
            self.check_grid(grid)
        lines = []
        for name, source in self.sources.items():
            for kind in source.config.variables.by_type:
                try:
                    source.check(kind, np.unique(self.window(name, kind)))
                except BadSampleError as error:
                    if self.data.on_bad_sample != "skip":
                        raise
                    lines.append(str(error))
        return lines + self.notes()


@activity("opening the data")
def open_dataset(
    data: DataConfig,
    open_files: OpenFiles | None = None,
    *,
    like: Coordinates | None = None,
    shared_grid: bool = True,
) -> Dataset:
    """Opens the files of a data section, without reading fields."""
    opened = open_data(data, open_files, like=like, shared_grid=shared_grid)
    starts = common_starts(data, opened.clocks, opened.calendar)
    schema, further = schemas_of(data, opened)
    dataset = Dataset(**vars(opened), schema=schema, further=further, starts=starts)
    # The starts for which every source has the whole window.
    keep = np.ones(len(dataset), dtype=bool)
    for name, source in dataset.sources.items():
        for kind in source.config.variables.by_type:
            if kind != "static":
                keep &= source.available(dataset.window(name, kind)).all(axis=-1)
    if not keep.any():
        raise ValueError(
            f"no sample has all its times: the sources {', '.join(dataset.x)} left out "
            "all of them"
        )
    return dataclasses.replace(dataset, starts=starts[keep])


def regridded_axes(grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """(lat,) and (lon,) degrees of the fields that a regrid block makes."""
    if grid.latitude is None or grid.longitude is None:
        raise ValueError(
            "the weight file of the regrid block gives no latitudes and longitudes of "
            "rows and columns, with which fields are returned and weighed"
        )
    return grid.latitude, grid.longitude


def collate(samples: Sequence[Sample]) -> dict[str, Any]:
    """Stacks samples to a nested batch: fields (batch, level, time, lat, lon)."""

    def join(arrays: list[np.ndarray]) -> np.ndarray:
        return arrays[0][None] if len(arrays) == 1 else np.stack(arrays)

    return {
        "input": stacked([sample.input for sample in samples], join),
        "target": stacked([sample.target for sample in samples], join),
        "input_times": np.stack([sample.input_time for sample in samples]),
        "target_times": np.stack([sample.target_time for sample in samples]),
    }


def stacked(
    parts: Sequence[Mapping[str, SourceFields]],
    join: Callable[[list[np.ndarray]], np.ndarray] = np.stack,
) -> dict[str, dict[str, np.ndarray]]:
    """Fields of several dates on a batch dim."""
    return {
        source: {key: join([part[source][key] for part in parts]) for key in fields}
        for source, fields in parts[0].items()
    }
