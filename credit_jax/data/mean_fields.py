"""Mean fields for anomalies: a climatology in a file that a config names."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from credit_jax.data.dataset import Dataset
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.axes import horizontal, level_values
from credit_jax.named_fields.coordinates import (
    UNKNOWN,
    CoordinateValues,
    GridCoordinates,
    Kind,
    as_values,
    indices_of,
    take_indices,
)
from credit_jax.named_fields.tree import by_key


def read_fields(
    path: str | Path,
    key: str,
    open_files: OpenFiles,
    data: GridCoordinates = UNKNOWN,
    levels: Mapping[str, CoordinateValues | None] = MappingProxyType({}),
) -> dict[str, np.ndarray]:
    """Reads all variables of a NetCDF or Zarr file, in float32, by name.

    They are in the order of the data, where the file has coordinates.

    Args:
        path: path of the file; environment variables are expanded.
        key: dotted config key of the path, for errors.
        open_files: cache of open files.
        data: latitudes and longitudes of the data.
        levels: name of a variable -> values of its levels in the data.

    Returns:
        (lat, lon) or (level, lat, lon) fields.

    Raises:
        ValueError: there is no such file, or a variable has other dims or other
            coordinates.
    """
    file = Path(os.path.expandvars(str(path)))
    if not file.exists():
        raise ValueError(f"{key}: {file} does not exist")
    dataset = open_files.dataset(file)
    fields = {
        str(name): np.asarray(values.values, np.float32)
        for name, values in dataset.data_vars.items()
    }
    wrong = {
        name: field.shape for name, field in fields.items() if field.ndim not in (2, 3)
    }
    if wrong:
        raise ValueError(
            f"{key}: {file}: expected (lat, lon) or (level, lat, lon) fields, got "
            f"{wrong}"
        )
    kinds: tuple[Kind, ...] = ("level", "latitude", "longitude")
    rows_columns = horizontal(dataset, f"{key}: {file}")
    space: dict[Kind, Any] = dict(zip(kinds[1:], rows_columns, strict=True))
    for name, field in fields.items():
        axes = dataset[name]
        origin = f"{key}: {file}: {name}", data.where
        coordinates = levels.get(name), data.latitude, data.longitude
        for axis, dim in enumerate(axes.dims, -field.ndim):
            kind, stored, of_space = kinds[axis], None, space.get(kinds[axis])
            if kind == "level" and dim in axes.coords:
                stored = level_values(axes[dim], origin[0])
            elif of_space is not None and of_space.dims == (dim,):
                stored = as_values(of_space.values)
            elif dim in axes.coords:
                stored = as_values(axes[dim].values)
            indices = indices_of(coordinates[axis], stored, kind, *origin)
            fields[name] = take_indices(fields[name], indices, axis)
    return fields


By = Literal["all", "season", "month"]

_NUM_BINS = {"all": 1, "season": 4, "month": 12}


@dataclasses.dataclass(frozen=True)
class Climatology:
    """Mean fields for each part of the year.

    Attributes:
        by: "all" (one mean), "season" (December to February, March to May, ...) or
            "month".
        mean: (part, channel, 1, lat, lon) in physical units, channels in the order of
            `schema.target`; a part without samples has the mean of all.
        counts: (part,) number of samples of each part.
    """

    by: By
    mean: Float[np.ndarray, "part channel 1 lat lon"]
    counts: np.ndarray

    def at(self, times: np.ndarray) -> Float[np.ndarray, "time channel 1 lat lon"]:
        """The mean fields for some times, datetime64."""
        return self.mean[part_of_year(times, self.by)]


def build_climatology(
    dataset: Dataset, by: By = "all", max_samples: int = 1000
) -> Climatology:
    """Averages the targets of a data set over time, at each point.

    Args:
        dataset: the data of the training period.
        by: parts of the year that are averaged separately.
        max_samples: number of evenly spaced samples that are used of a larger data set.

    Raises:
        ValueError, OSError: a sample cannot be read; for a data set that skips bad
            samples, no sample can be used.
    """
    count = min(len(dataset), max_samples)
    chosen = np.linspace(0, len(dataset) - 1, count).round().astype(int)
    sums: np.ndarray | None = None
    counts = np.zeros(_NUM_BINS[by], dtype=np.int64)
    for index in chosen:
        time = dataset.target_time(int(index))
        try:
            parts = by_key(dataset.target(int(index))).values()
            field = np.concatenate([*parts])
        except (ValueError, OSError):
            if dataset.data.on_bad_sample != "skip":
                raise
            continue
        if dataset.data.on_bad_sample == "skip" and not np.isfinite(field).all():
            continue
        if sums is None:
            sums = np.zeros((_NUM_BINS[by], *field.shape), dtype=np.float64)
        part = part_of_year(np.array([time]), by)[0]
        sums[part] += field
        counts[part] += 1
    if sums is None:
        raise ValueError(f"climatology: none of {count} samples can be used")
    everything = sums.sum(axis=0) / counts.sum()
    shape = (-1, 1, 1, 1, 1)
    means = np.where(
        counts.reshape(shape) > 0,
        sums / np.maximum(counts, 1).reshape(shape),
        everything,
    )
    return Climatology(by, means.astype(np.float32), counts)


def part_of_year(times: np.ndarray, by: By) -> np.ndarray:
    """(time,) index of the part of the year of each time, from 0."""
    month = times.astype("datetime64[M]").astype(np.int64) % 12
    return {"all": month * 0, "season": (month + 1) % 12 // 3, "month": month}[by]
