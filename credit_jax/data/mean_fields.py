"""The mean fields of a file that a config names for anomalies."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from credit_jax.io.open_files import OpenFiles


def read_fields(
    path: str | Path, key: str, open_files: OpenFiles
) -> dict[str, np.ndarray]:
    """All variables of a NetCDF or Zarr file, float32, by name.

    Args:
        path: the file; environment variables are expanded.
        key: the dotted key of the config that names it, for errors.
        open_files: files that are open already.

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
