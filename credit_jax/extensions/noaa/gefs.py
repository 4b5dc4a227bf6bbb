"""The `gefs` source: initial states of a member of GEFS, on the cubed sphere."""

import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config import not_available
from credit_jax.config.data import DataConfig
from credit_jax.data.clock import probe_times
from credit_jax.data.sources.file_variable import common_count, level_positions
from credit_jax.data.sources.registry import SourceEntry
from credit_jax.data.sources.source import (
    BadSampleError,
    FileGrid,
    Source,
    SourceFields,
    field_key,
    read_times,
    variables_of,
)
from credit_jax.extensions.noaa.sections import GefsConfig
from credit_jax.io.open_files import OpenFiles
from credit_jax.io.remote import exists

_TILES = range(1, 7)
# 2-D variables in the files of the atmosphere; all others are in those of the surface.
_ATMOSPHERE = ("ps",)
# Winds at cell centers -> winds at cell edges, and the dim to average over.
_CENTERED = {"u_a": ("u_s", 1), "v_a": ("v_w", 2)}
# Number of times that are checked before a run.
_MANY_FILES = 200


@dataclasses.dataclass(frozen=True)
class GefsSource(Source):
    """Reads the six tiles of the cubed sphere as one dim of points; see `Source`."""

    name: str
    config: GefsConfig
    open_files: OpenFiles
    shape: tuple[int, ...] = ()  # (points,)
    num_levels: int = 0  # of its 3-D variables; 0 without any
    calendar: str = "standard"

    def fields(
        self, field_type: str, times: np.ndarray, rows: slice | None = None
    ) -> SourceFields:
        """See `Source.read`."""
        if rows is not None:
            raise ValueError(f"data.source.{self.name}: the cube sphere has no rows")
        read = functools.partial(self._read_one, field_type)
        return read_times(read, field_type, times)

    def grids(self) -> Iterator[FileGrid]:
        """See `Source.grids`."""
        yield FileGrid(f"data.source.{self.name}: gefs", self.shape, None, None)

    def check(self, field_type: str, times: np.ndarray) -> None:
        """See `Source.check`."""
        for time in times[:: -(-len(times) // _MANY_FILES)] if len(times) else ():
            variables = variables_of(self.config, field_type)
            paths = {p for v in variables for p in paths_of(self.config, time, *v)}
            for path in sorted(paths):
                if not exists(path):
                    raise BadSampleError(
                        f"data.source.{self.name}: {str(time)[:16]}: no file {path!r}"
                    )

    def _read_one(
        self, field_type: str, time: np.datetime64
    ) -> dict[str, Float[np.ndarray, "level point"]]:
        """Reads all variables of a field type at one time."""
        fields = {}
        for dims, name in variables_of(self.config, field_type):
            paths = paths_of(self.config, time, dims, name)
            tiles = [self._tile(path, dims, name) for path in paths]
            field = np.concatenate(tiles, axis=1, dtype=np.float32)
            fields[field_key(self.name, field_type, dims, name)] = field
        return fields

    def _tile(
        self, path: str, dims: str, name: str
    ) -> Float[np.ndarray, "level point"]:
        """Reads one variable of one tile."""
        if not exists(path):
            raise BadSampleError(f"data.source.{self.name}: no file {path!r}")
        dataset = self.open_files.dataset(path)
        edge, dim = _CENTERED.get(name, (name, 0)) if dims == "3d" else (name, 0)
        if edge not in dataset.data_vars:
            raise not_available(f"{path}: variable", edge, dataset.data_vars)
        try:
            array = dataset.variables[edge]
            values = np.asarray(array.isel(Time=0) if "Time" in array.dims else array)
        except (OSError, ValueError, RuntimeError) as error:
            raise ValueError(
                f"{path}: variable {edge!r} cannot be read ({error}); fetch the file "
                "again"
            ) from error
        if dims == "2d":
            return values.reshape(1, -1)
        if edge != name or name == "zh":
            # Means of neighbors along a dim.
            low, high = (
                np.moveaxis(values, dim, 0)[part]
                for part in (slice(-1), slice(1, None))
            )
            values = np.moveaxis(0.5 * (low + high), 0, dim)
        points = values[0].size
        if self.config.levels is not None:
            of, origin = f"{path}: variable {name!r}", f"data.source.{self.name}"
            values = values[
                level_positions(self.config.levels, len(values), of, origin)
            ]
        return values.reshape(-1, points)


def paths_of(
    config: GefsConfig, time: np.datetime64, dims: str = "3d", name: str = ""
) -> list[str]:
    """Returns the paths of the files of the six tiles."""
    part = "gfs" if dims == "3d" or name in _ATMOSPHERE else "sfc"
    run: Any = pd.Timestamp(time)
    day = os.path.join(config.folder, f"gefs.{run:%Y%m%d}", f"{run:%H}", "atmos/init")
    tiles = (f"{part}_data.tile{tile}.nc" for tile in _TILES)
    return [os.path.join(day, config.member, tile) for tile in tiles]


def open_gefs(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> GefsSource:
    """Opens files of NOAA, or those of CREDIT's gefs_download, in NOAA's folders."""
    # One member, without the dim of members that CREDIT's fields have, which its concat
    # cannot join.
    config = data.source[name]
    assert isinstance(config, GefsConfig)
    files = open_files or OpenFiles()
    source = GefsSource(name, config, files)
    times = probe_times(data, config)
    tried = times[:_MANY_FILES]
    first = next((t for t in tried if exists(paths_of(config, t)[0])), None)
    if first is None:
        path = paths_of(config, times[0])[0]
        raise FileNotFoundError(f"data.source.{name}: no file {path!r}")
    fields: dict[str, np.ndarray] = {}
    for kind in config.variables.by_type:
        fields |= source._read_one(kind, first)
    levels = {key: len(field) for key, field in fields.items() if "/3d/" in key}
    count = common_count(levels, f"data.source.{name}")
    shape = next(iter(fields.values())).shape[1:]
    return dataclasses.replace(source, shape=shape, num_levels=count)


GEFS = SourceEntry(GefsConfig, open_gefs)
