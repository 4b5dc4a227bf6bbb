"""A source whose fields are variables of NetCDF or Zarr files.

On disk 3-D variables are (time, level, latitude, longitude), 2-D ones (time, latitude,
longitude), and static ones have no time. In memory every field is (level, time,
latitude, longitude) float32, and a 2-D variable has one level. `FileConventions`
describe the differences between data sets.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config.messages import counted
from credit_jax.config.sources.source import NETCDF4, SourceConfig
from credit_jax.data.calendars import ROUNDING, most_restrictive, rounding_of
from credit_jax.data.sources.file_dims import FileConventions, FileDims
from credit_jax.data.sources.files import Files
from credit_jax.data.sources.levels import (
    NOTED_DISTANCE,
    common_count,
)
from credit_jax.data.sources.reader import OpenFile, Reader
from credit_jax.data.sources.source import (
    BadSampleError,
    FileGrid,
    SourceFields,
    check_same_grid,
    check_same_shape,
    field_key,
    join_times,
    variables_of,
)
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.coordinates import UNKNOWN, Axes, as_values, take_places

# Positions of the rows and of the columns of a file; None keeps them as they are.
Order: TypeAlias = tuple[np.ndarray | None, np.ndarray | None]
# Number of files of a field type that `check` opens; of more, it opens every n-th.
MANY_FILES = 200
# Attributes that say what a variable is (CF conventions, section 3).
_DESCRIPTIVE = ("standard_name", "long_name", "units")


@dataclasses.dataclass(frozen=True)
class FileSource:
    """An opened source that reads files; see `Source`.

    Attributes:
        name: name of the source.
        config: section of the source.
        files: (field type, variable) -> files of the variable.
        reader: opens and reads the files.
        conventions: conventions of the files.
        calendar: calendar of its times.
        num_levels: number of levels of its 3-D variables; 0 without any.
        requested: coordinates of the fields, see `at`.
        orders: positions of rows and columns of each file that was opened.
        rounded: path -> note, of the files with rounded times.
    """

    name: str
    config: SourceConfig
    files: Mapping[tuple[str, str], Files]
    reader: Reader
    conventions: FileConventions
    calendar: str = "standard"
    num_levels: int = 0
    requested: Axes = UNKNOWN
    orders: dict[Any, Order] = dataclasses.field(default_factory=dict, compare=False)
    rounded: dict[str, str] = dataclasses.field(default_factory=dict, compare=False)

    @cached_property
    def dims(self) -> FileDims:
        """The dims of the variables of its files."""
        return FileDims(self.name, self.config, self.conventions, self.requested)

    def axes(self) -> Axes:
        """See `Source.axes`: of the first files, where `at` was given none."""
        axes = self.requested
        for kind in self.config.variables.by_type:
            for dims, name in variables_of(self.config, kind):
                opened = self._first_file(kind, name)
                grid = self._grid(opened, name)
                levels = None
                if dims == "3d" and axes.levels is None:
                    levels = self.dims.level_values(opened, name)
                    indices = self.dims.level_indices(opened, name)
                    if levels is not None and indices is not None:
                        levels = tuple(levels[i] for i in indices)
                coordinates = (
                    as_values(grid.latitude),
                    as_values(grid.longitude),
                    levels,
                )
                axes = axes.over(Axes(*coordinates, where=grid.where))
        return axes

    def at(self, axes: Axes) -> "FileSource":
        """See `Source.at`."""
        listed, count = self.config.level_values, self.num_levels
        if count and axes.levels is not None:
            count = len(axes.levels)
            if listed is not None and len(listed) != count:
                raise ValueError(
                    f"data.source.{self.name}.levels: {list(listed)} are "
                    f"{len(listed)} levels, but {axes.where} has {count}: "
                    f"{list(axes.levels)}; name as many"
                )
        # Cached fields and positions belong to the old coordinates.
        reader, orders = self.reader.anew(), dict[Any, Order]()
        return dataclasses.replace(
            self, requested=axes, num_levels=count, reader=reader, orders=orders
        )

    def read(
        self, field_type: str, times: np.ndarray, rows: slice | None = None
    ) -> SourceFields:
        """See `Source.read`."""
        arrays = {}
        for dims, name in variables_of(self.config, field_type):
            key = field_key(self.name, field_type, dims, name)
            # A static field is read once and repeated.
            if field_type == "static":
                field = self._at(field_type, dims, name, times[-1], rows)
                steps = [field] * len(times)
            else:
                steps = [self._at(field_type, dims, name, time, rows) for time in times]
            arrays[key] = join_times(steps)
        return arrays

    def grids(self) -> Iterator[FileGrid]:
        """See `Source.grids`."""
        for kind in self.config.variables.by_type:
            _, name = next(variables_of(self.config, kind))
            yield self._grid(self._first_file(kind, name), name)

    def _grid(self, opened: OpenFile, name: str) -> FileGrid:
        """The grid of a variable of a file."""
        shape, space = self.dims.space_of(opened, name)
        where = f"{opened.path}: {name}"
        if len(space) != 2 or self.conventions.extent:
            return FileGrid(where, shape, None, None)
        requested = self.requested.latitude, self.requested.longitude
        stored = opened.latitude, opened.longitude
        if all(known is not None for known in requested):
            size = tuple(len(known or ()) for known in requested)
            first = FileGrid(self.requested.where, size, None, None)
            check_same_shape(FileGrid(where, shape, None, None), first)
        self._order(opened, name)
        values = [
            np.array(known) if known is not None else None if c is None else c.values
            for known, c in zip(requested, stored, strict=True)
        ]
        return FileGrid(where, shape, *values)

    def _order(self, opened: OpenFile, name: str) -> Order:
        """Positions of rows and columns, see `FileDims.order_of`."""
        # Variables of a file may be on several grids, which their dims tell apart.
        key = opened.path, opened.variable(name).dims
        if key not in self.orders:
            self.orders[key] = self.dims.order_of(opened, name)
        return self.orders[key]

    def units(self) -> dict[str, tuple[str, str]]:
        """See `Source.units`."""
        return {
            key: (attributes["units"], path)
            for key, (attributes, path) in self._described()
            if "units" in attributes
        }

    def attributes(self) -> dict[str, dict[str, str]]:
        """See `Source.attributes`."""
        described = {key: attributes for key, (attributes, _) in self._described()}
        return described | self._level_attributes()

    def _level_attributes(self) -> dict[str, dict[str, str]]:
        """Attributes of the level coordinate, if levels are values of it."""
        for kind in self.config.variables.by_type:
            for dims, name in variables_of(self.config, kind):
                if dims == "3d":
                    opened = self._first_file(kind, name)
                    if self.dims.level_values(opened, name) is None:
                        return {}
                    dim = self.dims.level_dim(opened, name)
                    attrs = opened.dataset.coords[dim].attrs
                    return {f"{self.name}/level": descriptive(attrs)}
        return {}

    def _described(self) -> Iterator[tuple[str, tuple[dict[str, str], str]]]:
        """The key of each variable, its descriptive attributes, and their file."""
        for kind in self.config.variables.by_type:
            for dims, name in variables_of(self.config, kind):
                opened = self._first_file(kind, name)
                attributes = descriptive(opened.variable(name).attrs)
                yield field_key(self.name, kind, dims, name), (attributes, opened.path)

    def notes(self) -> list[str]:
        """See `Source.notes`."""
        notes = [*self._notes_on_order(), *self._notes_on_times()]
        values = self.config.level_values
        if values is None or self.conventions.levels != "nearest":
            return notes
        where = f"data.source.{self.name}.levels"
        for kind in self.config.variables.by_type:
            for dims, name in variables_of(self.config, kind):
                if dims == "3d":
                    opened = self._first_file(kind, name)
                    dim = self.dims.level_dim(opened, name)
                    chosen = self.dims.level_indices(opened, name)
                    chosen = slice(None) if chosen is None else chosen
                    levels = opened.dataset[dim].values[chosen].tolist()
                    notes += [
                        f"{where}: {value:g} is read from level {level:g}, the nearest "
                        f"of {opened.path}, as in CREDIT"
                        for value, level in zip(values, levels, strict=True)
                        if abs(value - level) > NOTED_DISTANCE * abs(value)
                    ]
        return [*dict.fromkeys(notes)]

    def _notes_on_order(self) -> Iterator[str]:
        """Files whose rows, columns or levels are read in another order."""
        for (path, _), order in dict(self.orders).items():
            names = [
                what
                for what, indices in zip(("rows", "columns"), order, strict=True)
                if indices is not None
            ]
            if names:
                yield (
                    f"{path}: its {' and '.join(names)} are put in the order of "
                    f"{self.requested.where}, by their coordinates"
                )
                return

    def _notes_on_times(self) -> Iterator[str]:
        """Rounded times, and static variables of which one of several times is read."""
        yield from list(self.rounded.values())[:1]
        for kind, name in self.files:
            if kind == "static" and self.conventions.static_time == "first":
                opened = self._first_file(kind, name)
                size = opened.dataset.sizes.get(opened.time_coord, 1)
                timed = opened.time_coord in opened.variable(name).dims
                if timed and size > 1:
                    yield (
                        f"{opened.path}: {name} is static, and has {size} times, of "
                        "which the first alone is read; take the mean of them, or "
                        "name the variable as a dynamic_forcing (temporal_mode: cyclic)"
                    )

    def path_of(
        self, field_type: str, variable: str, time: np.datetime64
    ) -> str | None:
        """See `Source.path_of`."""
        files = self.files.get((field_type, variable))
        return None if files is None else files.find(time)

    def coverage(self) -> tuple[pd.Timestamp, pd.Timestamp] | None:
        """See `Source.coverage`."""
        for kind, name in self.files:
            times = None
            if kind != "static" and not self.conventions.one_time:
                times = self._first_file(kind, name).times
            if times is not None and len(times):
                # Times in float days may be off by seconds; whole hours are meant.
                ends: Any = times[[times.argmin(), times.argmax()]]
                hours = ends.round("h")
                near = np.abs((ends - hours).to_numpy()) <= ROUNDING
                first, last = ends.where(~near, hours)
                return first, last
        return None

    def available(self, times: np.ndarray) -> np.ndarray:
        """See `Source.available`."""
        every = [files.available(times) for files in set(self.files.values())]
        return np.logical_and.reduce(every)

    def check(self, field_type: str, times: np.ndarray) -> None:
        """See `Source.check`."""
        by_files: dict[Files, list[tuple[str, str]]] = {}
        for dims, name in variables_of(self.config, field_type):
            by_files.setdefault(self.files[field_type, name], []).append((dims, name))
        for files, named in by_files.items():
            self._check_files(field_type, files, named, times)

    def _check_files(
        self,
        field_type: str,
        files: Files,
        named: list[tuple[str, str]],
        times: np.ndarray,
    ) -> None:
        places = np.array([files.find(time) or "" for time in times])
        missing = list(times[places == ""])
        paths = sorted(set(places[places != ""]))
        units: dict[str, tuple[str, str]] = {}
        first: FileGrid | None = None
        for path in paths[:: -(-len(paths) // MANY_FILES)] if paths else []:
            try:
                opened = self.reader.open(path)
            except ValueError as error:
                raise BadSampleError(str(error)) from error
            self.dims.check(field_type, opened, named)
            _check_units(opened, named, units)
            for _, name in named:
                grid = self._grid(opened, name)
                first = first or grid
                check_same_grid(grid, first)
            if self.dims.timeless(field_type, opened, named):
                continue
            if opened.times is None:
                raise ValueError(
                    f"{path}: no time coordinate {self.config.time_coord!r}; set "
                    f"data.source.{self.name}.time_coord"
                )
            self._check_calendar(opened, files)
            requested = times[places == path]
            positions = opened.time_places(requested)
            missing += list(requested[positions < 0])
            stored = opened.times.to_numpy()[positions[positions >= 0]]
            note = rounding_of(requested[positions >= 0], stored, path)
            if note is not None:
                self.rounded.setdefault(path, note)
        if missing:
            raise BadSampleError(
                self._missing_times(field_type, files, missing, len(times))
            )

    def _at(
        self,
        field_type: str,
        dims: str,
        name: str,
        time: np.datetime64,
        rows: slice | None,
    ) -> Float[np.ndarray, "level *space"]:
        """Reads one variable at one time."""
        files = self.files[field_type, name]
        path = files.find(time)
        if path is None:
            raise ValueError(
                f"data.source.{self.name}.variables.{field_type}: {name}: no file of "
                f"{files.template!r} {files.lacks(time)}"
            )
        opened = self.reader.open(path)
        index = 0
        first = field_type == "static" and self.conventions.static_time == "first"
        timed = opened.time_coord in opened.variable(name).dims
        if timed and not first and not self.conventions.one_time:
            self._check_calendar(opened, files)
            index = opened.time_index(time)
        key = (path, name, dims, None if rows is None else (rows.start, rows.stop))
        return self.reader.field(
            (*key, index), lambda: self._load(opened, name, dims, index, key, rows)
        )

    def _load(
        self,
        opened: OpenFile,
        name: str,
        dims: str,
        index: int,
        key: tuple,
        rows: slice | None,
    ) -> dict[tuple, Float[np.ndarray, "level *space"]]:
        """Reads the field of a key, and the other times of its chunk, for the cache."""
        array = opened.variable(name)
        _, space = self.dims.space_of(opened, name)
        row_places, columns = self._order(opened, name)
        if row_places is not None:
            needed = row_places if rows is None else row_places[rows]
            rows = slice(int(needed.min()), int(needed.max()) + 1)
            row_places = needed - needed.min()
        chosen: dict[Any, Any] = self.dims.cropped(opened, space, rows)
        if dims == "3d":
            indices = self.dims.level_indices(opened, name)
            if indices is not None:
                chosen[self.dims.level_dim(opened, name)] = indices
        timed = opened.time_coord in array.dims
        steps = range(index, index + 1)
        if timed:
            steps = self.reader.chunk_times(array, index)
            chosen[opened.time_coord] = slice(steps.start, steps.stop)
        values = opened.values(name, chosen, index if timed else None)
        order = [dim for dim in array.dims if dim not in space] + list(space)
        values = values.transpose([array.dims.index(dim) for dim in order])
        values = take_places(take_places(values, row_places, -2), columns, -1)
        values = np.ascontiguousarray(values, dtype=np.float32)
        values = values if timed else values[None]
        values = values if dims == "3d" else values[:, None]
        # Copies: a view in the cache would keep all times of the chunk in memory.
        fields = [values[0]] if len(steps) == 1 else [field.copy() for field in values]
        keys = [(*key, step) for step in steps]
        return dict(zip(keys, fields, strict=True))

    def _first_file(self, field_type: str, name: str) -> OpenFile:
        return self.reader.open(self.files[field_type, name].first_path)

    def _check_calendar(self, opened: OpenFile, files: Files) -> None:
        """Checks that a file has the calendar of the first one.

        Raises:
            ValueError: it has another one.
        """
        first = self.reader.open(files.first_path)
        if opened.calendar != first.calendar:
            raise ValueError(
                f"{opened.path}: its times are in the calendar {opened.calendar}, "
                f"those of {first.path} in {first.calendar}, where the same date may "
                "be another day; bring all files to one calendar"
            )

    def _missing_times(
        self, field_type: str, files: Files, missing: list, count: int
    ) -> str:
        shown = [str(time)[:16] for time in sorted(missing)]
        listed = ", ".join(shown[:3]) + (f", ... {shown[-1]}" if len(shown) > 3 else "")
        return (
            f"data.source.{self.name}.variables.{field_type}: {len(missing)} of "
            f"{count} times are missing in the files of {files.template!r}: {listed}."
            f"{self._covers(files)}; choose other dates, or the time step of the files "
            f"(data.source.{self.name}.timestep), or complete the files"
        )

    def _covers(self, files: Files) -> str:
        """The period that the files cover, for the error of a missing time."""
        if not files.ends:
            return ""
        ends: list[Any] = [self.reader.open(path).times for path in files.ends]
        covers = " to ".join(
            times[i].isoformat()[:16]
            for times, i in zip(ends, (0, -1), strict=True)
            if times is not None and len(times)
        )
        return f" They cover {covers} ({counted(files.count, 'file')})"


def open_files_source(
    name: str,
    config: SourceConfig,
    files: Mapping[tuple[str, str], Files],
    conventions: FileConventions,
    open_files: OpenFiles | None = None,
) -> FileSource:
    """Opens a source; reads the metadata of the first file of each variable.

    Args:
        name: name of the source.
        config: section of the source.
        files: (field type, variable) -> files of the variable.
        conventions: conventions of the files.
        open_files: cache of open files, shared with other sources.

    Raises:
        ValueError: a variable or a level is missing, a calendar is not available, or
            the dims of a file are not in CREDIT's order.
    """
    engine = None if config.engine == NETCDF4 else config.engine
    reader = Reader(config.time_coord, engine, open_files=open_files)
    source = FileSource(name, config, files, reader, conventions)
    levels: dict[str, int] = {}
    calendars = []
    for (kind, variable), file_set in files.items():
        opened = reader.open(file_set.first_path)
        dims = "3d" if variable in config.variables.by_type[kind].vars_3D else "2d"
        levels |= source.dims.check(kind, opened, [(dims, variable)])
        if kind != "static" and opened.times is not None:
            calendars.append(opened.calendar)
    count = common_count(levels, f"data.source.{name}")
    calendar = config.calendar or most_restrictive(calendars)
    return dataclasses.replace(source, calendar=calendar, num_levels=count)


def _check_units(
    opened: OpenFile,
    named: list[tuple[str, str]],
    units: dict[str, tuple[str, str]],
) -> None:
    """Checks that a variable has the same units in all files."""
    for _, name in named:
        unit = opened.variable(name).attrs.get("units")
        if unit is None:
            continue
        path, first = units.setdefault(name, (opened.path, unit))
        if unit != first:
            raise ValueError(
                f"{opened.path}: variable {name!r} has units {unit!r}, but in {path} "
                f"{first!r}; bring all files to one unit"
            )


def descriptive(attributes: Mapping[Any, Any]) -> dict[str, str]:
    """Returns standard name, long name and units, those that are not empty, as text."""
    return {k: str(attributes[k]) for k in _DESCRIPTIVE if attributes.get(k)}
