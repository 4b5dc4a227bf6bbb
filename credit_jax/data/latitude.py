"""Reads the latitudes for area weights from a file that a config names."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from jaxtyping import Float

from credit_jax.io.errors import errors_of
from credit_jax.io.open_files import OpenFiles

LATITUDE_NAMES = ("latitude", "lat")


def read_latitude(
    path: str | Path, key: str, open_files: OpenFiles
) -> Float[np.ndarray, " lat"]:
    """Reads the `latitude` coordinate of a NetCDF or Zarr file.

    Args:
        path: path of the file; environment variables are expanded.
        key: dotted config key of the path, for errors.
        open_files: cache of open files.

    Returns:
        (lat,) degrees north.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be opened, or has no one-dimensional latitude
            coordinate.
    """
    place = Path(os.path.expandvars(str(path)))
    if not place.exists():
        raise FileNotFoundError(
            f"{key}: {place} does not exist; it must be a NetCDF or Zarr file with a "
            "`latitude` coordinate, such as the static fields"
        )
    with errors_of(key):
        dataset = open_files.dataset(place)
    for name in LATITUDE_NAMES:
        if name in dataset.variables and dataset[name].ndim == 1:
            return np.asarray(dataset[name].values, np.float64)
    variables = sorted(map(str, dataset.variables))
    raise ValueError(
        f"{key}: {place} has no one-dimensional `latitude`; it has {variables}"
    )
