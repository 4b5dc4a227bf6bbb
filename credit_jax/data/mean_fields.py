"""Reads mean fields for anomalies from a file that a config names."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from credit_jax.io.open_files import OpenFiles


def read_fields(
    path: str | Path, key: str, open_files: OpenFiles
) -> dict[str, np.ndarray]:
    """Reads all variables of a NetCDF or Zarr file, in float32, by name.

    Args:
        path: path of the file; environment variables are expanded.
        key: dotted config key of the path, for errors.
        open_files: cache of open files.

    Returns:
        (lat, lon) or (level, lat, lon) fields.

    Raises:
        ValueError: there is no such file, or a variable has other dims.
    """
    place = Path(os.path.expandvars(str(path)))
    if not place.exists():
        raise ValueError(f"{key}: {place} does not exist")
    dataset = open_files.dataset(place)
    found = {
        str(name): np.asarray(values.values, np.float32)
        for name, values in dataset.data_vars.items()
    }
    wrong = {name: own.shape for name, own in found.items() if own.ndim not in (2, 3)}
    if wrong:
        raise ValueError(
            f"{key}: {place}: expected (lat, lon) or (level, lat, lon) fields, got "
            f"{wrong}"
        )
    return found
