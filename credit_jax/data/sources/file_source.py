"""A source whose fields are variables of NetCDF or Zarr files.

`open_files_source` reads the metadata of the first file of each variable. Then the way
of a field is

    time -> path (`Files`) -> `OpenFile` (`Reader`) -> `FileVariable` -> index of the
    time -> cache of fields (`Reader`), or else `FileVariable.load`

Each file is opened and compared with the first one when it is read, and before a run
by `FileSource.check`, which goes the same way up to the index. `FileConventions`
describe the differences between data sets.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config.messages import counted
from credit_jax.config.sources.source import NETCDF4, SourceConfig
from credit_jax.data.calendars import ROUNDING, most_restrictive, rounding_of
from credit_jax.data.sources import source
from credit_jax.data.sources.file_variable import (
    FileConventions,
    FileVariable,
    Order,
    common_count,
)
from credit_jax.data.sources.files import Files
from credit_jax.data.sources.reader import OpenFile, Reader
from credit_jax.data.sources.source import Source, SourceFields
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.coordinates import UNKNOWN, GridCoordinates, as_values
from credit_jax.named_fields.units import comparable, conversion, text_of, unit_of

# Number of files of a field type that `check` opens; of more, it opens every n-th.
MANY_FILES = 200
_AXES = "rows", "columns"
# Attributes that say what a variable is (CF conventions, section 3).
_DESCRIPTIVE = ("standard_name", "long_name", "units")


@dataclasses.dataclass(frozen=True)
class FileSource(Source):
    """An opened source that reads files; see `Source`."""

    name: str  # name of the source
    config: SourceConfig  # section of the source
    # (field type, variable) -> files of the variable.
    files: Mapping[tuple[str, str], Files]
    reader: Reader  # opens and reads the files
    conventions: FileConventions  # conventions of the files
    calendar: str = "standard"  # calendar of its times
    num_levels: int = 0  # number of levels of its 3-D variables; 0 without any
    requested: GridCoordinates = UNKNOWN  # coordinates of the fields, see `at`
    # (path, dims of a variable) -> order of its rows and columns, of the files that
    # were read or checked.
    orders: dict[tuple[str, tuple], Order] = dataclasses.field(
        default_factory=dict, compare=False
    )
    # path -> note, of the checked files with rounded times.
    rounded: dict[str, str] = dataclasses.field(default_factory=dict, compare=False)
    # Variable -> note, of those whose checked files have another unit.
    converted: dict[str, str] = dataclasses.field(default_factory=dict, compare=False)
    # key -> unit of the variables of a run, in which they are read.
    of_run: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # key -> unit in which fields are read, of variables that were opened.
    read_in: dict[str, str] = dataclasses.field(default_factory=dict, compare=False)

    def read(
        self,
        field_type: str,
        times: np.ndarray,
        rows: slice | None = None,
        out: Mapping[str, Float[np.ndarray, "_ _ *space"]] | None = None,
    ) -> SourceFields:
        arrays = {}
        # A static field is read once and repeated.
        needed = times[-1:] if field_type == "static" else times
        for dims, name in source.variables_of(self.config, field_type):
            variable = field_type, dims, name
            key = source.field_key(self.name, *variable)
            to = None if out is None else out.get(key)
            steps = [
                self._at(*variable, time, rows, None if to is None else to[:, n])
                for n, time in enumerate(needed)
            ]
            if to is None:
                arrays[key] = source.join_times(steps * (len(times) // len(needed)))
            else:
                to[:, len(needed) :] = to[:, :1]
                arrays[key] = to
        return arrays

    def _at(
        self,
        field_type: str,
        dims: str,
        name: str,
        time: np.datetime64,
        rows: slice | None,
        out: Float[np.ndarray, "level *space"] | None,
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
        variable = self._variable(opened, field_type, dims, name)
        index = 0
        if variable.is_timed:
            self._check_calendar(opened, files)
            index = opened.time_index(time)
        times = range(index, index + 1)
        if variable.has_time_dim:
            times = self.reader.chunk_times(opened, variable.stored, index)
        part = name, dims, None if rows is None else (rows.start, rows.stop)
        if part not in opened.parts:
            opened.parts[part] = variable.part(rows, self._order(variable))
        chosen, shape = opened.parts[part]
        if out is not None and out.shape != shape:
            raise ValueError(
                f"{path}: {name} has (levels, rows, columns) {shape}, expected "
                f"{out.shape} as in other files"
            )
        return self.reader.field(
            (path, *part),
            times,
            index,
            shape,
            lambda times, to: variable.load(times, index, chosen, to),
            out,
        )

    def available(self, times: np.ndarray) -> np.ndarray:
        # `missing_dates` of the first file are left out.
        every = [files.available(times) for files in set(self.files.values())]
        opened = [self._first_file(*key) for key in self.files]
        lists = [np.ravel(f.dataset.attrs.get("missing_dates", [])) for f in opened]
        absent = np.isin(times, np.concatenate(lists).astype("datetime64[ns]"))
        return np.logical_and.reduce(every) & ~absent

    def _variable(
        self, opened: OpenFile, field_type: str, dims: str, name: str
    ) -> FileVariable:
        """Returns a variable of an open file."""
        key = source.field_key(self.name, field_type, dims, name)
        if key not in self.read_in:
            # All files are read in the unit of the first one, or of a run.
            stored_as = self.conventions.names.get(name, name)
            first = self._first_file(field_type, name).dataset.data_vars.get(stored_as)
            stored = "" if first is None else text_of(first.attrs, "units")
            unit = self.of_run.get(key, "")
            self.read_in[key] = unit if conversion(stored, unit) else stored
        section = self.name, self.config, self.conventions, self.requested
        return FileVariable(opened, field_type, dims, name, *section, self.read_in[key])

    def _first_file(self, field_type: str, name: str) -> OpenFile:
        return self.reader.open(self.files[field_type, name].first_path)

    def variables(self, *field_types: str) -> Iterator[FileVariable]:
        """Yields each variable of some field types, or of all, in its first file."""
        for kind in field_types or self.config.variables.by_type:
            for dims, name in source.variables_of(self.config, kind):
                opened = self._first_file(kind, name)
                yield self._variable(opened, kind, dims, name)

    def _order(self, variable: FileVariable) -> Order:
        """Returns `FileVariable.order`, matched once for each grid of a file."""
        # Variables of a file may be on several grids, which their dims tell apart.
        key = variable.opened.path, variable.array.dims
        if key not in self.orders:
            self.orders[key] = variable.order()
        return self.orders[key]

    def _grid(self, variable: FileVariable) -> source.FileGrid:
        """Returns the grid of a variable, and checks that it can be put in order."""
        grid = variable.grid()
        self._order(variable)
        return grid

    def axes(self) -> GridCoordinates:
        # Those of the first files, where `at` was given none.
        axes = self.requested
        for variable in self.variables():
            grid = self._grid(variable)
            space = as_values(grid.latitude), as_values(grid.longitude)
            read_levels = variable.dims == "3d" and axes.levels is None
            levels = variable.read_levels() if read_levels else None
            axes = axes.over(GridCoordinates(*space, levels, where=grid.where))
        return axes

    def at(self, axes: GridCoordinates) -> "FileSource":
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
        cleared: dict[str, Any] = {"reader": self.reader.anew(), "orders": {}}
        return dataclasses.replace(self, requested=axes, num_levels=count, **cleared)

    def keeping(self, num_times: int) -> "FileSource":
        """Returns the source whose last fields are kept, of some number of times."""
        reader = self.reader.anew(num_times * len(self.files))
        return dataclasses.replace(self, reader=reader)

    def grids(self) -> Iterator[source.FileGrid]:
        for kind in self.config.variables.by_type:
            yield self._grid(next(self.variables(kind)))

    def units(self) -> dict[str, tuple[str, str]]:
        return {v.key: (v.unit, v.opened.path) for v in self.variables() if v.unit}

    def attributes(self) -> dict[str, dict[str, str]]:
        # Those of levels, if they are values of a coordinate.
        described = {
            v.key: descriptive({**v.array.attrs, "units": v.unit})
            for v in self.variables()
        }
        first_3d = next((v for v in self.variables() if v.dims == "3d"), None)
        if first_3d is not None and first_3d.level_values is not None:
            coordinate = first_3d.opened.dataset.coords[first_3d.level_dim]
            about = descriptive(coordinate.attrs)
            unit = getattr(self.axes().levels, "unit", "")
            described[f"{self.name}/level"] = about | ({"units": unit} if unit else {})
        return described

    def path_of(
        self, field_type: str, variable: str, time: np.datetime64
    ) -> str | None:
        files = self.files.get((field_type, variable))
        return None if files is None else files.find(time)

    def coverage(self) -> tuple[pd.Timestamp, pd.Timestamp] | None:
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

    def notes(self) -> list[str]:
        # One reordered file and one with rounded times stand for all.
        reordered = [
            f"{path}: its {' and '.join(axes)} are put in the order of "
            f"{self.requested.where}, by their coordinates"
            for (path, _), order in dict(self.orders).items()
            if (axes := [a for a, i in zip(_AXES, order, strict=True) if i is not None])
        ]
        notes = reordered[:1] + [*self.rounded.values()][:1]
        notes += self.converted.values()
        every = [*self.variables()]
        nameless = [x.opened.path for x in every if x.lacks_axes]
        if nameless:
            notes.append(
                f"{nameless[0]} has no latitudes and longitudes of rows and columns, "
                "which are taken in the order of the file"
            )
        for variable in every:
            size = variable.array.sizes.get(variable.opened.time_coord, 1)
            if variable.is_first_time and size > 1:
                notes.append(
                    f"{variable.opened.path}: {variable.name} is static, and has "
                    f"{size} times, of which the first alone is read; take the mean of "
                    "them, or name the variable as a dynamic_forcing (temporal_mode: "
                    "cyclic)"
                )
        units = {v.name: text_of(v.array.attrs, "units") for v in every}
        unknown = [f"{k} in {u!r}" for k, u in units.items() if u and not unit_of(u)]
        if unknown:
            notes.append(
                f"data.source.{self.name}: units that are not known, and are compared "
                f"with none: {', '.join(unknown)}"
            )
        if self.config.level_values is not None:
            notes += [n for v in every for n in v.notes_on_levels()]
        return [*dict.fromkeys(notes)]

    def check(self, field_type: str, times: np.ndarray) -> None:
        by_files: dict[Files, list[tuple[str, str]]] = {}
        for dims, name in source.variables_of(self.config, field_type):
            by_files.setdefault(self.files[field_type, name], []).append((dims, name))
        for files, named in by_files.items():
            chosen = np.array([files.find(time) or "" for time in times])
            paths, missing = sorted({*chosen} - {""}), [*times[chosen == ""]]
            # Variable -> the first file with units, and these.
            units: dict[str, tuple[str, str]] = {}
            first: source.FileGrid | None = None
            for path in paths[:: -(-len(paths) // MANY_FILES) or 1]:
                try:
                    opened = self.reader.open(path)
                except ValueError as error:
                    raise source.BadSampleError(str(error)) from error
                requested, timed = times[chosen == path], False
                for dims, name in named:
                    variable = self._variable(opened, field_type, dims, name)
                    variable.check(is_dated=np.unique(requested).size == 1)
                    unit = text_of(variable.array.attrs, "units")
                    earlier, other = units.setdefault(name, (path, unit))
                    if not other:
                        units[name] = path, unit
                    elif unit and not (
                        comparable(unit, other) and conversion(unit, other)
                    ):
                        raise ValueError(
                            f"{path}: variable {name!r} has units {unit!r}, but in "
                            f"{earlier} {other!r}, to which they cannot be converted; "
                            "bring all files to one unit"
                        )
                    if variable.unit_change is not None:
                        note = f"{path}: {name} is in {unit!r}, and read in"
                        self.converted.setdefault(name, f"{note} {variable.unit!r}")
                    grid = self._grid(variable)
                    first = first or grid
                    source.check_same_files(grid, first)
                    timed = timed or variable.is_timed
                if timed:
                    missing += self._missing_times(opened, files, requested)
            if missing:
                texts = [str(time)[:16] for time in sorted(missing)]
                listed = ", ".join(texts[:3])
                listed += f", ... {texts[-1]}" if len(texts) > 3 else ""
                raise source.BadSampleError(
                    f"data.source.{self.name}.variables.{field_type}: {len(missing)} "
                    f"of {len(times)} times are missing in the files of "
                    f"{files.template!r}: {listed}.{self._covers(files)}; choose other "
                    "dates, or the time step of the files "
                    f"(data.source.{self.name}.timestep), or complete the files"
                )

    def _check_calendar(self, opened: OpenFile, files: Files) -> None:
        """Checks that a file has the calendar of the first one."""
        first = self.reader.open(files.first_path)
        if opened.calendar != first.calendar:
            raise ValueError(
                f"{opened.path}: its times are in the calendar {opened.calendar}, "
                f"those of {first.path} in {first.calendar}, where the same date may "
                "be another day; bring all files to one calendar"
            )

    def _missing_times(
        self, opened: OpenFile, files: Files, requested: np.ndarray
    ) -> list[np.datetime64]:
        """Returns the times that a file lacks, and notes a rounding of the others."""
        if opened.times is None:
            raise ValueError(
                f"{opened.path}: no time coordinate {self.config.time_coord!r}; set "
                f"data.source.{self.name}.time_coord"
            )
        self._check_calendar(opened, files)
        positions = opened.time_indices(requested)
        stored = opened.times.to_numpy()[positions[positions >= 0]]
        note = rounding_of(requested[positions >= 0], stored, opened.path)
        if note is not None:
            self.rounded.setdefault(opened.path, note)
        return list(requested[positions < 0])

    def _covers(self, files: Files) -> str:
        """The period that the files cover, for the error of a missing time."""
        if not files.paths:
            return ""
        both = files.paths[0], files.paths[-1]
        ends: list[Any] = [self.reader.open(path).times for path in both]
        covers = " to ".join(
            times[i].isoformat()[:16]
            for times, i in zip(ends, (0, -1), strict=True)
            if times is not None and len(times)
        )
        return f" They cover {covers} ({counted(len(files.paths), 'file')})"


def open_files_source(
    name: str,
    config: SourceConfig,
    files_of: Callable[[str, str, str], Files],
    conventions: FileConventions,
    open_files: OpenFiles | None = None,
) -> FileSource:
    """Opens a source; reads the metadata of the first file of each variable."""
    engine = None if config.engine == NETCDF4 else config.engine
    reader = Reader(config.time_coord, engine, open_files=open_files)
    files = {
        (kind, variable): files_of(kind, dims, variable)
        for kind in config.variables.by_type
        for dims, variable in source.variables_of(config, kind)
    }
    opened = FileSource(name, config, files, reader, conventions)
    levels, calendars = {}, []
    for variable in opened.variables():
        of_file = files[variable.field_type, variable.name]
        num_levels = variable.check(is_dated=of_file.are_dated)
        if variable.dims == "3d":
            levels[variable.name] = num_levels
        if variable.field_type != "static" and variable.opened.times is not None:
            calendars.append(variable.opened.calendar)
    count = common_count(levels, f"data.source.{name}")
    calendar = config.calendar or most_restrictive(calendars)
    return dataclasses.replace(opened, calendar=calendar, num_levels=count)


def descriptive(attributes: Mapping[Any, Any]) -> dict[str, str]:
    """Returns standard name, long name and units, those that are not empty, as text."""
    return {k: text for k in _DESCRIPTIVE if (text := text_of(attributes, k))}
