"""The `local` source: NetCDF and Zarr files, read one sample at a time.

On disk 3-D variables are (time, level, latitude, longitude), 2-D ones (time, latitude,
longitude), static ones without time (a time dim of a static file is dropped by taking
its first entry). In memory every field is (level, time, latitude, longitude) float32,
a 2-D variable having one level; its key is "{source}/{field_type}/{3d|2d}/{variable}".
"""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config.data import FIELD_TYPES, NETCDF4, FieldConfig, SourceConfig
from credit_jax.data.files import FileSet, discover
from credit_jax.data.reader import OpenFile, Reader
from credit_jax.io.open_files import OpenFiles

# Largest distance of the nearest level of a file, as a fraction of the largest spacing.
LEVEL_TOLERANCE = 0.5


@dataclasses.dataclass(frozen=True)
class LocalSource:
    """One source of the data section, opened.

    Attributes:
        name: of the source.
        config: its section.
        files: field type -> its files, for the field types that it has.
        reader: opens and reads them.
        calendar: of its times.
        num_levels: levels of its 3-D variables (0 without any).
    """

    name: str
    config: SourceConfig
    files: dict[str, FileSet]
    reader: Reader
    calendar: str
    num_levels: int

    def fields(self, field_type: str) -> FieldConfig | None:
        """The variables of a field type."""
        return getattr(self.config.variables, field_type)

    def first_file(self, field_type: str) -> OpenFile:
        """The first file of a field type."""
        return self.reader.open(self.files[field_type].paths[0])

    def read(
        self, field_type: str, times: np.ndarray
    ) -> dict[str, Float[np.ndarray, "level time lat lon"]]:
        """All variables of a field type at some times, 3-D before 2-D.

        Args:
            field_type: "prognostic", "dynamic_forcing", "static" or "diagnostic".
            times: (time,) labels; a static field is repeated for each.

        Raises:
            ValueError: if no file has a time or a variable.
        """
        config = self.fields(field_type)
        if config is None:
            return {}
        arrays = {}
        for dims, names in (("3d", config.vars_3D), ("2d", config.vars_2D)):
            for name in names:
                key = f"{self.name}/{field_type}/{dims}/{name}"
                steps = [self._at(field_type, dims, name, time) for time in times]
                arrays[key] = np.stack(steps, axis=1)
        return arrays

    def _at(
        self, field_type: str, dims: str, name: str, time: np.datetime64
    ) -> Float[np.ndarray, "level lat lon"]:
        """One variable at one time."""
        path = self.files[field_type].find(time)
        if path is None:
            raise ValueError(self._no_file(field_type, time))
        index = 0
        if field_type != "static":
            index = self.reader.open(path).time_index(time)
        return self.reader.field(
            (path, name, dims, index), lambda: self._load(path, name, dims, index)
        )

    def _load(
        self, path: str, name: str, dims: str, index: int
    ) -> dict[tuple, Float[np.ndarray, "level lat lon"]]:
        """The field of a key, and other times of its chunk that may be cached."""
        opened = self.reader.open(path)
        array = opened.variable(name)
        chosen: dict[Any, Any] = {}
        if dims == "3d" and self.config.levels is not None:
            chosen[self.config.level_coord] = self.level_indices(opened)
        timed = opened.time_coord in array.dims
        steps = range(index, index + 1)
        if timed:
            steps = self.reader.chunk_times(array, index)
            chosen[opened.time_coord] = slice(steps.start, steps.stop)
        values = np.asarray(array.isel(chosen).values, dtype=np.float32)
        values = values if timed else values[None]
        values = values if dims == "3d" else values[:, None]
        # Copies: a view in the cache would keep all times of the chunk in memory.
        fields = [values[0]] if len(steps) == 1 else [field.copy() for field in values]
        keys = [(path, name, dims, step) for step in steps]
        return dict(zip(keys, fields, strict=True))

    def level_indices(self, opened: OpenFile) -> list[int]:
        """Positions of the configured levels in a file: the nearest ones.

        Raises:
            ValueError: if a level is further from all levels of the file than their
                spacing allows, naming the levels that are there.
        """
        assert self.config.levels is not None
        coordinate = self.config.level_coord
        if coordinate not in opened.dataset.coords:
            raise ValueError(
                f"{opened.path}: no level coordinate {coordinate!r} to select levels "
                f"from; it has: {', '.join(map(str, opened.dataset.coords))}. Set "
                f"data.source.{self.name}.level_coord, or levels: null to take all"
            )
        there = opened.dataset[coordinate].values.astype(np.float64)
        wanted = np.asarray(self.config.levels, dtype=np.float64)
        indices = pd.Index(there).get_indexer(wanted, method="nearest")
        _check_levels(there, wanted, indices, opened.path, self.name)
        return indices.tolist()

    def _no_file(self, field_type: str, time: np.datetime64) -> str:
        """Message for a time that no file covers."""
        files = self.files[field_type]
        assert files.first is not None
        assert files.last is not None
        return (
            f"data.source.{self.name}.variables.{field_type}: no file of "
            f"{files.template!r} covers {str(time)[:19]}; {len(files.paths)} files "
            f"cover {str(files.first[0])[:10]} to {str(files.last[-1])[:10]}"
        )


def open_source(
    name: str,
    config: SourceConfig,
    open_files: OpenFiles | None = None,
) -> LocalSource:
    """Find the files of a source and read the metadata of the first of each kind.

    Args:
        name: of the source.
        config: its section.
        open_files: files that are open already, shared with other sources.

    Raises:
        FileNotFoundError: if a field type has no file.
        ValueError: for another dataset_type, a missing variable or level, or a file
            whose dims are not in CREDIT's order.
    """
    where = f"data.source.{name}"
    if config.dataset_type != "local":
        raise ValueError(
            f"{where}.dataset_type: {config.dataset_type!r} is not available; there "
            "are: local"
        )
    engine = None if config.engine == NETCDF4 else config.engine
    reader = Reader(config.time_coord, engine, open_files=open_files)
    files = {}
    for kind in FIELD_TYPES:
        field = getattr(config.variables, kind)
        if field is not None:
            files[kind] = discover(field.path, f"{where}.variables.{kind}.path")
    source = LocalSource(name, config, files, reader, "standard", 0)
    levels = {}
    calendars = []
    for kind in files:
        opened = source.first_file(kind)
        levels |= check_variables(source, kind, opened)
        calendars += [opened.calendar] if opened.times is not None else []
    counts = sorted(set(levels.values()))
    if len(counts) > 1:
        raise ValueError(
            f"{where}: 3-D variables have different numbers of levels: {levels}; name "
            "those to take in levels"
        )
    noleap = "noleap" if "noleap" in calendars else "standard"
    return dataclasses.replace(
        source, calendar=noleap, num_levels=counts[0] if counts else 0
    )


def check_variables(
    source: LocalSource, field_type: str, opened: OpenFile
) -> dict[str, int]:
    """Check that a file has all variables of a field type, with dims in order.

    Returns:
        Variable -> number of levels that will be read, for the 3-D variables.
    """
    config = source.fields(field_type)
    assert config is not None
    levels = {}
    for name in config.vars_3D + config.vars_2D:
        array = opened.variable(name)
        three = name in config.vars_3D
        _check_dims(source, field_type, opened, name, three)
        if three and source.config.levels is not None:
            levels[name] = len(source.level_indices(opened))
        elif three:
            levels[name] = array.shape[-3]
    return levels


def _check_dims(
    source: LocalSource,
    field_type: str,
    opened: OpenFile,
    variable: str,
    three: bool,
) -> None:
    """(time, level, lat, lon) or (time, lat, lon); no time for a static variable."""
    dims = [str(dim) for dim in opened.variable(variable).dims]
    time, level = opened.time_coord, source.config.level_coord
    lat = str(opened.latitude.dims[0]) if opened.latitude is not None else None
    lon = str(opened.longitude.dims[0]) if opened.longitude is not None else None
    names = [time] if field_type != "static" or time in dims else []
    names += [str(level)] if three else []
    names += [lat or "latitude", lon or "longitude"]
    known = [lat is not None, lon is not None]
    wrong = len(dims) != len(names) or any(
        dim != name
        for dim, name, sure in zip(
            dims, names, [True] * (len(names) - 2) + known, strict=True
        )
        if sure
    )
    if wrong:
        raise ValueError(
            f"{opened.path}: variable {variable!r} has dims ({', '.join(dims)}), "
            f"expected ({', '.join(names)}) for a "
            f"{'3-D' if three else '2-D'} {field_type} variable; transpose the file, "
            f"or set time_coord and level_coord of data.source.{source.name}"
        )


def _check_levels(
    there: np.ndarray, wanted: np.ndarray, indices: np.ndarray, path: str, source: str
) -> None:
    gaps = np.abs(np.diff(np.sort(there)))
    limit = LEVEL_TOLERANCE * gaps.max() if gaps.size else np.inf
    distance = np.abs(there[indices] - wanted)
    if (distance > limit).any():
        lost = wanted[distance > limit].tolist()
        raise ValueError(
            f"{path}: no level near {lost}; it has {there.size} levels: "
            f"{there[:20].tolist()}{' ...' if there.size > 20 else ''}. Change "
            f"data.source.{source}.levels"
        )
    if len(set(indices.tolist())) < len(indices):
        raise ValueError(
            f"{path}: levels {wanted.tolist()} of data.source.{source} select a level "
            f"twice (nearest: {there[indices].tolist()})"
        )
