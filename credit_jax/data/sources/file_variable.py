"""A variable of a NetCDF or Zarr file, as a source reads it.

On disk a 3-D variable is (time, level, latitude, longitude), in any order where rows
and columns have coordinates, a 2-D one has no level, a static one may have no time, and
an unstructured grid has points instead of rows and columns. `FileConventions` are what
a data set does otherwise. `FileVariable.load` reads times of a variable to an array
(time, level, latitude, longitude), float32, with rows, columns and levels in the order
of requested coordinates.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from credit_jax.config.sources.source import OUTPUT_TYPES, SourceConfig
from credit_jax.data.sources.reader import OpenFile
from credit_jax.data.sources.source import FileGrid, check_same_files, field_key
from credit_jax.named_fields import coordinates
from credit_jax.named_fields.axes import coordinate, level_values
from credit_jax.named_fields.coordinates import LevelValues, as_values, indices_of
from credit_jax.named_fields.units import conversion, text_of

# Positions in a file of the rows and columns to read; None keeps its order.
Order: TypeAlias = tuple[np.ndarray | None, np.ndarray | None]
Levels: TypeAlias = Literal["nearest", "exact", "position"]

# Limit of extrapolation beyond the levels of a file, relative to the last spacing.
LEVEL_TOLERANCE = 0.5
# Relative distance of a nearest level above which the user is told.
NOTED_DISTANCE = 0.01
# Kinds of dtypes of fields: booleans, integers, floats.
_NUMBERS = "biuf"
# What rows and columns are called in errors, if the file has no coordinates.
_SPACE = ("latitude", "longitude")


@dataclasses.dataclass(frozen=True)
class FileConventions:
    """The conventions of the files of a data set."""

    # Meaning of `levels` in the config: the "nearest" values of the level coordinate,
    # "exact" values, or a "position", counted from 1.
    levels: Levels = "nearest"
    # The time to read of a static variable that has a time dim: the "first" of the
    # file, or the "same" as for other variables.
    static_time: Literal["first", "same"] = "first"
    one_time: bool = False  # whether each file has a single time, which is in its name
    # Returns the rows and columns of a file to read; None reads all.
    extent: Callable[[OpenFile], tuple[slice, slice]] | None = None
    # Variable of the config -> its name in the files, if another one.
    names: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)


@dataclasses.dataclass(frozen=True)
class FileVariable:
    """A variable of an open file, and the part of it that a source reads."""

    opened: OpenFile  # the file
    field_type: str  # "prognostic", "dynamic_forcing", "static" or "diagnostic"
    dims: str  # "3d" or "2d", as the config says
    name: str  # name of the variable in the config
    source: str  # name of the source
    config: SourceConfig  # section of the source
    conventions: FileConventions  # conventions of its files
    # Coordinates at which fields are read; unknown ones are those of the file.
    requested: coordinates.GridCoordinates = coordinates.UNKNOWN
    unit: str = ""  # in which fields are read; "" if that of the file is unknown

    @property
    def array(self) -> xr.Variable:
        """Its metadata; values are read on access."""
        return self.opened.variable(self.stored)

    @property
    def stored(self) -> str:
        """Its name in the file."""
        return self.conventions.names.get(self.name, self.name)

    @property
    def key(self) -> str:
        """Its key in the samples of the source."""
        return field_key(self.source, self.field_type, self.dims, self.name)

    @property
    def unit_change(self) -> tuple[float, float] | None:
        """Factor and offset to the unit in which it is read; None if it is kept."""
        change = conversion(text_of(self.array.attrs, "units"), self.unit)
        return None if change == (1.0, 0.0) else change

    @property
    def has_time_dim(self) -> bool:
        return self.opened.time_coord in self.array.dims

    @property
    def is_first_time(self) -> bool:
        """Whether it is static, and read at the first time of the file, if any."""
        return self.field_type == "static" and self.conventions.static_time == "first"

    @property
    def is_timed(self) -> bool:
        """Whether its time is looked up in the time coordinate of the file."""
        searched = not (self.conventions.one_time or self.is_first_time)
        return searched and self.has_time_dim

    @property
    def is_unstructured(self) -> bool:
        """Whether the grid has one dim of points instead of rows and columns."""
        if self.config.grid_type is not None:
            return self.config.grid_type == "unstructured"
        lat, lon = self.opened.latitude, self.opened.longitude
        return lat is not None and lon is not None and lat.dims == lon.dims

    @property
    def space(self) -> tuple[str, ...]:
        """The dims of rows and columns, in this order, or of points."""
        count = 1 if self.is_unstructured else 2
        space = tuple(str(dim) for dim in self.array.dims[-count:])
        rows_columns = self._coordinate_dims
        fits = rows_columns and {*rows_columns} <= {*self.array.dims}
        return rows_columns if fits else space

    @property
    def _coordinate_dims(self) -> tuple[str, ...]:
        """The dims of rows and columns, if the file has coordinates of both."""
        # By these the dims of a variable may be in any order.
        axes = self.opened.latitude, self.opened.longitude
        dims = [str(axis.dims[0]) for axis in axes if axis is not None]
        return tuple(dims) if len({*dims}) == 2 and not self.is_unstructured else ()

    @property
    def extent(self) -> tuple[slice, ...]:
        """The part of each dim of `space` that the source reads."""
        if self.conventions.extent is None:
            return (slice(None),) * len(self.space)
        return self.conventions.extent(self.opened)

    def grid(self) -> FileGrid:
        """Returns the grid of its fields as they are read."""
        origin, sizes = f"{self.opened.path}: {self.name}", self.array.sizes
        parts = zip(self.space, self.extent, strict=True)
        shape = tuple(len(range(sizes[dim])[part]) for dim, part in parts)
        grid = FileGrid(origin, shape, None, None)
        if not self._has_axes:
            return grid
        requested = [self.requested.latitude, self.requested.longitude]
        if None not in requested:
            size = tuple(len(values or ()) for values in requested)
            check_same_files(grid, FileGrid(self.requested.where, size, None, None))
        stored = self.opened.latitude, self.opened.longitude
        latitude, longitude = (
            np.array(values) if values is not None else None if c is None else c.values
            for values, c in zip(requested, stored, strict=True)
        )
        return FileGrid(origin, shape, latitude, longitude)

    def order(self) -> Order:
        """Returns the positions of the rows and columns to read."""
        if not self._has_axes:
            return None, None
        origin = f"{self.opened.path}: {self.name}"
        requested, other = self.requested, self.requested.where
        rows, columns = map(as_values, (self.opened.latitude, self.opened.longitude))
        is_told = self.config.grid_type is not None
        if (
            (requested.latitude or requested.longitude)
            and self.lacks_axes
            and not is_told
        ):
            raise ValueError(
                f"{origin} has no latitudes and longitudes of rows and columns, which "
                f"{other} has; give them to the file, or set "
                f"data.source.{self.source}.grid_type: rectilinear, by which both are "
                "taken in the order of the file"
            )
        return (
            indices_of(requested.latitude, rows, "latitude", origin, other),
            indices_of(requested.longitude, columns, "longitude", origin, other),
        )

    @property
    def _has_axes(self) -> bool:
        """Whether coordinates of the file say which rows and columns are read."""
        # Those of points do not, and with an extent they are of the whole grid.
        return not self.is_unstructured and self.conventions.extent is None

    @property
    def lacks_axes(self) -> bool:
        """Whether rows or columns have neither coordinates nor those of points."""
        opened = self.opened
        return (
            self._has_axes
            and (opened.latitude is None or opened.longitude is None)
            and coordinate(opened.dataset, "latitude", 2) is None
        )

    @property
    def level_dim(self) -> str:
        """The level dim of a 3-D variable."""
        if self.config.level_coord is not None:
            return self.config.level_coord
        others = {self.config.time_coord, *self.space}
        dims = [str(dim) for dim in self.array.dims]
        return next((dim for dim in dims if dim not in others), dims[0])

    @property
    def level_values(self) -> LevelValues | None:
        """Values of all levels of the file, as the config lists them, or None."""
        by_position = self.conventions.levels == "position"
        if by_position or self.level_dim not in self.opened.dataset.coords:
            return None
        levels = level_values(self.opened.dataset[self.level_dim], self.opened.path)
        return levels if self._listed is None else as_listed(levels, self._listed)[0]

    @property
    def _listed(self) -> coordinates.CoordinateValues | None:
        """Levels that the config lists, where no coordinates are requested."""
        return self.config.level_values if self.requested.levels is None else None

    def level_indices(self) -> list[int] | None:
        """Returns the indices of the levels to read; None reads all."""
        stored, expected = self.level_values, self.requested.levels
        # Requested levels come from other files of the source, where the config's
        # `levels` have been applied. Numbers 1, 2, 3, ... are no values to match.
        if expected is not None and stored is not None:
            pair = self._where, self.requested.where
            indices = indices_of(
                expected, stored, "level", *pair, some=True, of_run=True
            )
            if not coordinates.is_numbered(expected, stored):
                return None if indices is None else indices.tolist()
        values, how = self.config.level_values, self.conventions.levels
        if values is None:
            return None
        origin = f"data.source.{self.source}"
        if how != "position" and stored is None:
            raise ValueError(
                f"{self._where} has no level coordinate {self.level_dim!r} to select "
                f"levels from; the file has: "
                f"{', '.join(map(str, self.opened.dataset.coords))}; set "
                f"{origin}.level_coord, or levels: null to take all"
            )
        if stored is None:
            count = self.array.sizes[self.level_dim]
            return level_positions(values, count, self._where, origin)
        return level_indices(stored, values, how, self._where, origin)

    def read_levels(self) -> LevelValues | None:
        """Returns the values of the levels to read; None if they have no values."""
        if self._listed is not None and self.level_values is not None:
            levels = level_values(self.opened.dataset[self.level_dim], "")
            if as_listed(levels, self._listed)[1]:
                raise ValueError(
                    f"{self._where} has the levels {list(self._listed)} of "
                    f"data.source.{self.source}.levels in hPa as well as in "
                    f"{levels.unit or 'Pa'}; convert its level coordinate to hPa, or "
                    "leave those out that are not meant"
                )
        values, indices = self.level_values, self.level_indices()
        if values is None or indices is None:
            return values
        return values.take(indices)

    def notes_on_levels(self) -> list[str]:
        """Returns the levels of the config that are read from another level."""
        values = self.config.level_values
        if self.dims != "3d" or values is None or self.conventions.levels != "nearest":
            return []
        indices = self.level_indices()
        chosen = slice(None) if indices is None else indices
        levels = np.asarray(self.level_values)[chosen].tolist()
        return [
            f"data.source.{self.source}.levels: {value:g} is read from level "
            f"{level:g}, the nearest of {self.opened.path}, as in CREDIT"
            for value, level in zip(values, levels, strict=True)
            if abs(value - level) > NOTED_DISTANCE * abs(value)
        ]

    def part(
        self, rows: slice | None, order: Order
    ) -> tuple[dict[str, Any], tuple[int, ...]]:
        """Returns what is read of each dim but time, and its shape (level, *space)."""
        array, space, parts = self.array, self.space, [*self.extent]
        row_indices, columns = order
        if rows is not None and len(space) != 2:
            raise ValueError(f"{self.opened.path}: an unstructured grid has no rows")
        chosen: dict[str, Any] = dict(zip(space, parts, strict=True))
        if row_indices is not None:
            # Rows are counted in the requested order.
            chosen[space[0]] = row_indices[slice(None) if rows is None else rows]
        elif rows is not None:
            part = range(array.sizes[space[0]])[parts[0]][rows]
            chosen[space[0]] = slice(part.start, part.stop, part.step)
        if columns is not None:
            chosen[space[1]] = columns
        if self.dims == "3d":
            levels = self.level_indices()
            chosen = {
                self.level_dim: slice(None) if levels is None else levels
            } | chosen
        shape = tuple(
            np.arange(array.sizes[d])[part].size for d, part in chosen.items()
        )
        return chosen, shape if self.dims == "3d" else (1, *shape)

    def load(
        self,
        times: range,  # indices; a single one without time dim
        index: int,  # that of the requested time, for errors
        chosen: Mapping[str, Any],
        out: Float[np.ndarray, "time level *space"],
    ) -> None:
        """Reads some times of the variable."""
        to, dims = out if self.dims == "3d" else out[:, 0], [*chosen]
        if self.has_time_dim:
            time = self.opened.time_coord
            chosen = {time: slice(times.start, times.stop), **chosen}
            dims = [time, *dims]
        else:
            to = to[0]
        to = to.transpose([dims.index(str(dim)) for dim in self.array.dims])
        self.opened.read(self.stored, chosen, index if self.has_time_dim else None, to)
        if self.unit_change is not None:
            factor, offset = map(np.float32, self.unit_change)
            to *= factor
            to += offset

    def check(self, *, is_dated: bool) -> int:
        """Checks that it holds numbers, with dims in order and the requested levels."""
        array = self.array
        if array.dtype.kind not in _NUMBERS:
            raise ValueError(
                f"{self._where} is of dtype {array.dtype}, "
                "expected numbers; convert it, or name another variable"
            )
        # Checks the dims: time (optional), level, rows, columns.
        actual = [str(dim) for dim in self.array.dims]
        time = self.opened.time_coord
        # None is a dim with any name, of which the file has no coordinate.
        axes = self.opened.latitude, self.opened.longitude
        space = [None if axis is None else str(axis.dims[0]) for axis in axes]
        space = space[:1] if self.is_unstructured else space
        previous = [self.config.level_coord] if self.dims == "3d" else []
        more = len(actual) > len(previous) + len(space)
        if more or (self.field_type != "static" and time in actual):
            previous = [time, *previous]
        rows_columns = self._coordinate_dims
        if rows_columns and {*rows_columns} <= {*actual}:
            others = [dim for dim in actual if dim not in rows_columns]
            fits = _match(others, previous) or _match(others[::-1], previous)
        else:
            fits = _match(actual, [*previous, *space])
        if not fits:
            names = [name or "level" for name in previous]
            usual = actual[-1:] if self.is_unstructured else _SPACE
            names += [n or d for n, d in zip(space, usual, strict=False)]
            raise ValueError(
                f"{self._where} has dims ({', '.join(actual)}), expected "
                f"({', '.join(names)}) for a {'3-D' if self.dims == '3d' else '2-D'} "
                f"{self.field_type} variable; transpose the file, or set time_coord "
                f"and level_coord of data.source.{self.source}"
            )
        count = 0
        if self.dims == "3d":
            indices = self.level_indices()
            count = array.sizes[self.level_dim] if indices is None else len(indices)
            expected = self.requested.levels
            if expected is not None and count != len(expected):
                raise ValueError(
                    f"{self._where} has {count} levels, expected {len(expected)} as in "
                    f"{self.requested.where}: {list(expected)}; give the level "
                    "coordinate its values, or choose levels by "
                    f"data.source.{self.source}.levels"
                )
        # The names of files may say their times.
        is_timed = self.has_time_dim or is_dated
        if self.field_type in OUTPUT_TYPES and not is_timed:
            raise ValueError(
                f"{self._where} has no dim {time!r}, and would be the same at all "
                "times, as nothing that is predicted or compared is; give it times "
                "(time_coord names their dim), or make it static in "
                f"data.source.{self.source}"
            )
        # Number of levels to read; 0 for a 2-D variable.
        return count

    @property
    def _where(self) -> str:
        """The file and the variable, for errors."""
        return f"{self.opened.path}: variable {self.name!r}"


def _match(dims: Sequence[str], expected: Sequence[str | None]) -> bool:
    """Whether dims are the expected ones, where None matches any dim."""
    return len(dims) == len(expected) and all(
        name in (None, dim) for dim, name in zip(dims, expected, strict=True)
    )


def as_listed(levels: LevelValues, listed: Sequence[float]) -> tuple[LevelValues, bool]:
    """Levels in the unit in which a config lists them, or hPa; and whether both fit."""
    factor = (
        *coordinates.readings(LevelValues(listed, "hPa"), levels),
        1.0,
    )[0]
    if factor == 1.0:
        return levels, False
    converted = LevelValues(np.multiply(levels, factor), "hPa", levels.positive)
    fits = [
        bool((np.abs(np.subtract.outer(x, listed)).min(0) <= limit).all())
        for x in (levels, converted)
        for limit in (NOTED_DISTANCE * np.abs(listed),)
    ]
    return converted if fits == [False, True] else levels, all(fits)


def level_indices(
    levels: LevelValues,
    requested: tuple[float, ...],
    how: Levels,
    of: str,
    origin: str,
) -> list[int]:
    """Returns the indices of the levels at which a variable of a file is read."""
    values, available = (np.asarray(x, np.float64) for x in (requested, levels))
    text = f"{available[:20].tolist()}{' ...' if available.size > 20 else ''}"
    if not np.isfinite(available).all():
        raise ValueError(f"{of} has levels {text}, expected finite numbers")
    coordinates.check_once(available, "level", of)
    index = pd.Index(available)
    # Which of two levels at one distance is nearest depends on the order, as in CREDIT.
    is_ordered = index.is_monotonic_increasing or index.is_monotonic_decreasing
    order = np.arange(available.size) if is_ordered else np.argsort(available)
    indices = order[index[order].get_indexer(values, method="nearest")]
    ordered = np.sort(available)
    gaps = np.diff(ordered) if available.size > 1 else np.full(1, np.inf)
    inside = (values >= ordered[0]) & (values <= ordered[-1])
    gap = np.where(values < ordered[0], gaps[0], gaps[-1])
    # For "nearest", half the spacing of the levels outside of them.
    limit = np.where(inside, np.inf, LEVEL_TOLERANCE * gap)
    limit = np.zeros(values.size) if how == "exact" else limit
    distance = np.abs(available[indices] - values)
    if (distance > limit).any():
        units = f" in {levels.unit!r}" if levels.unit else ""
        raise ValueError(
            f"{of} has no level near {values[distance > limit].tolist()}; it has "
            f"{available.size} levels{units}: {text}; change {origin}.levels"
        )
    if len({*indices.tolist()}) < len(indices):
        raise ValueError(
            f"{of}: {origin}.levels {values.tolist()} select a level twice "
            f"(nearest: {available[indices].tolist()}); name each level once"
        )
    return indices.tolist()


def level_positions(
    requested: Sequence[float], count: int, of: str, origin: str
) -> list[int]:
    """Returns the indices of levels that are given as positions, counted from 1."""
    wrong = [
        level for level in requested if level != int(level) or not 1 <= level <= count
    ]
    if wrong:
        raise ValueError(
            f"{of} has {count} levels, got {wrong} in {origin}.levels, expected "
            f"positions from 1 to {count}"
        )
    return [int(level) - 1 for level in requested]


def common_count(counts: Mapping[str, int], origin: str) -> int:
    """Returns the number of levels that all 3-D variables of a source have."""
    if len(set(counts.values())) > 1:
        raise ValueError(
            f"{origin}: expected the same number of levels of all 3-D variables, got "
            f"{dict(counts)}; name those to take in {origin}.levels"
        )
    return max(counts.values(), default=0)
