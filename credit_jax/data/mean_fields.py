"""Mean fields for anomalies: a climatology in a file that a config names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.data.dataset import Dataset
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields import coordinates
from credit_jax.named_fields.axes import horizontal, level_values
from credit_jax.named_fields.coordinates import Kind, as_values, indices_of
from credit_jax.named_fields.tree import by_key


def read_fields(
    path: str | Path,
    key: str,  # dotted, of the config, for errors
    open_files: OpenFiles,
    data: coordinates.GridCoordinates,
    levels: Mapping[str, coordinates.CoordinateValues | None],  # by variable
) -> dict[str, np.ndarray]:
    """Reads variables of a file, float32, in the order of the data, by name."""
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
        requested = levels.get(name), data.latitude, data.longitude
        for axis, dim in enumerate(axes.dims, -field.ndim):
            kind, stored, of_space = kinds[axis], None, space.get(kinds[axis])
            if kind == "level" and dim in axes.coords:
                stored = level_values(axes[dim], origin[0])
            elif of_space is not None and of_space.dims == (dim,):
                stored = as_values(of_space.values)
            elif dim in axes.coords:
                stored = as_values(axes[dim].values)
            indices = indices_of(requested[axis], stored, kind, *origin)
            fields[name] = coordinates.take_indices(fields[name], indices, axis)
    return fields


def mean_targets(
    dataset: Dataset, max_samples: int = 1000
) -> Float[np.ndarray, "channel 1 lat lon"]:
    """Averages the targets of evenly spaced samples, of all that can be used."""
    count = min(len(dataset), max_samples)
    total: np.ndarray | None = None
    used = 0
    for index in np.linspace(0, len(dataset) - 1, count).round().astype(int):
        try:
            field = np.concatenate([*by_key(dataset.target(int(index))).values()])
        except (ValueError, OSError):
            if dataset.data.on_bad_sample != "skip":
                raise
            continue
        if dataset.data.on_bad_sample == "skip" and not np.isfinite(field).all():
            continue
        total = np.zeros(field.shape) if total is None else total
        total += field
        used += 1
    if total is None:
        raise ValueError(f"climatology: none of {count} samples can be used")
    return (total / used).astype(np.float32)
