"""The `mrms` source: radar mosaics on a grid of latitudes and longitudes."""

import functools

import numpy as np
import pandas as pd

from credit_jax.config.data import DataConfig
from credit_jax.data.sources.file_source import FileSource
from credit_jax.data.sources.file_variable import FileConventions
from credit_jax.data.sources.local import open_local
from credit_jax.data.sources.reader import OpenFile
from credit_jax.data.sources.registry import SourceEntry
from credit_jax.extensions.noaa.sections import Extent, MrmsConfig
from credit_jax.io.open_files import OpenFiles


def open_mrms(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> FileSource:
    """Finds the files of a source, as `open_local` does, and its part of the grid."""
    config = data.source[name]
    assert isinstance(config, MrmsConfig)
    extent = config.extent
    part = functools.partial(_part, extent) if extent is not None else None
    conventions = FileConventions(static_time="same", extent=part)
    return open_local(name, data, open_files, conventions)


def _part(extent: Extent, opened: OpenFile) -> tuple[slice, slice]:
    """Rows and columns between the bounds, both included."""
    west, east, south, north = extent
    lat, lon = opened.latitude, opened.longitude
    if lat is None or lon is None:
        raise ValueError(f"{opened.path}: an extent needs lat and lon")
    rows: slice = pd.Index(lat.values).slice_indexer(south, north)
    columns: slice = pd.Index(lon.values).slice_indexer(west % 360, east % 360)
    for subject, values, part in (
        ("lat", lat.values, rows),
        ("lon", lon.values, columns),
    ):
        if not np.size(values[part]):
            raise ValueError(
                f"{opened.path}: nothing lies in extent {list(extent)}: {subject} runs "
                f"from {values[0]:g} to {values[-1]:g}"
            )
    return rows, columns


MRMS = SourceEntry(MrmsConfig, open_mrms)
