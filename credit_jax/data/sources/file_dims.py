"""The dims of variables of NetCDF or Zarr files: time, levels, rows and columns."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from credit_jax.config.sources.source import SourceConfig
from credit_jax.data.sources.levels import Levels
from credit_jax.data.sources.levels import level_indices as indices_of
from credit_jax.data.sources.reader import OpenFile, crop
from credit_jax.named_fields.coordinates import (
    UNKNOWN,
    Axes,
    CoordinateValues,
    as_values,
    is_numbered,
    places_of,
)

# Kinds of dtypes of fields: booleans, integers, floats.
_NUMBERS = "biuf"
_SPACE = ("latitude", "longitude")


@dataclasses.dataclass(frozen=True)
class FileConventions:
    """The conventions of the files of a data set.

    Attributes:
        levels: meaning of `levels` in the config: the "nearest" values of the level
            coordinate, "exact" values, or a "position", counted from 1.
        static_time: the time to read of a static variable that has a time dim: the
            "first" of the file, or the "same" as for other variables.
        one_time: whether each file has a single time, which is in its name.
        transposed: whether fields may be (longitude, latitude).
        extent: returns the rows and columns of a file to read; None reads all.
    """

    levels: Levels = "nearest"
    static_time: Literal["first", "same"] = "first"
    one_time: bool = False
    transposed: bool = False
    extent: Callable[[OpenFile], tuple[slice, slice]] | None = None


@dataclasses.dataclass(frozen=True)
class FileDims:
    """The dims of the variables of a source's files.

    Attributes:
        name: name of the source.
        config: section of the source.
        conventions: conventions of the files.
        requested: coordinates at which fields are read; unknown ones are those of a
            file.
    """

    name: str
    config: SourceConfig
    conventions: FileConventions
    requested: Axes = UNKNOWN

    def space_of(
        self, opened: OpenFile, name: str
    ) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Sizes and names of the dims of rows and columns, or of points."""
        array = opened.variable(name)
        count = 1 if self.is_unstructured(opened) else 2
        space = tuple(str(dim) for dim in array.dims[-count:])
        latitude = opened.latitude
        if self.conventions.transposed and count == 2 and latitude is not None:
            space = space if space[0] in latitude.dims else space[::-1]
        sizes = {str(d): n for d, n in zip(array.dims, array.shape, strict=True)}
        shape = [sizes[dim] for dim in space]
        if self.conventions.extent is not None:
            parts = self.conventions.extent(opened)
            shape = [len(range(n)[p]) for n, p in zip(shape, parts, strict=True)]
        return tuple(shape), space

    def cropped(
        self, opened: OpenFile, space: tuple[str, ...], rows: slice | None
    ) -> dict[Any, Any]:
        """Rows and columns to read, for dims that are not read whole."""
        whole = [slice(None)] * len(space)
        if self.conventions.extent is not None:
            whole = [*self.conventions.extent(opened)]
        if rows is not None:
            if len(space) != 2:
                raise ValueError(f"{opened.path}: an unstructured grid has no rows")
            whole[0] = crop(whole[0], opened.dataset.sizes[space[0]], rows)
        return {
            dim: part
            for dim, part in zip(space, whole, strict=True)
            if part != slice(None)
        }

    def is_unstructured(self, opened: OpenFile) -> bool:
        """Whether the grid has one dim of points instead of rows and columns."""
        if self.config.grid_type is not None:
            return self.config.grid_type == "unstructured"
        lat, lon = opened.latitude, opened.longitude
        return lat is not None and lon is not None and lat.dims == lon.dims

    def level_dim(self, opened: OpenFile, name: str) -> str:
        """The level dim of a 3-D variable."""
        if self.config.level_coord is not None:
            return self.config.level_coord
        dims = opened.variable(name).dims
        return str(dims[1 if self.config.time_coord in dims else 0])

    def level_indices(self, opened: OpenFile, name: str) -> list[int] | None:
        """Indices of the levels of a 3-D variable to read; None reads all."""
        stored, known = self.level_values(opened, name), self.requested.levels
        if known is not None and stored is not None and not is_numbered(known, stored):
            where = f"{opened.path}: variable {name!r}"
            options = {"some": True}
            places = places_of(
                known, stored, "level", where, self.requested.where, **options
            )
            return None if places is None else places.tolist()
        values, how = self.config.level_values, self.conventions.levels
        if values is None:
            return None
        dim, where = self.level_dim(opened, name), f"data.source.{self.name}"
        return indices_of(opened, name, dim, values, how, where)

    def level_values(self, opened: OpenFile, name: str) -> CoordinateValues | None:
        """Values of all levels of a 3-D variable of a file; None if it has none."""
        dim = self.level_dim(opened, name)
        if self.conventions.levels == "position" or dim not in opened.dataset.coords:
            return None
        coordinate = opened.dataset[dim]
        return as_values(coordinate.values) if coordinate.dtype.kind in "iuf" else None

    def order_of(
        self, opened: OpenFile, name: str
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Positions of the rows and columns to read; None reads them as they are.

        Raises:
            ValueError: the file has another grid.
        """
        _, space = self.space_of(opened, name)
        if len(space) != 2 or self.conventions.extent is not None:
            return None, None
        where = f"{opened.path}: {name}"
        requested, other = self.requested, self.requested.where
        rows, columns = as_values(opened.latitude), as_values(opened.longitude)
        return (
            places_of(requested.latitude, rows, "latitude", where, other),
            places_of(requested.longitude, columns, "longitude", where, other),
        )

    def timeless(
        self, field_type: str, opened: OpenFile, named: list[tuple[str, str]]
    ) -> bool:
        """Whether a file has no time dim in which to find a time."""
        if self.conventions.one_time:
            return True
        if field_type == "static" and self.conventions.static_time == "first":
            return True
        timed = [opened.time_coord in opened.variable(n).dims for _, n in named]
        return not any(timed)

    def check(
        self, field_type: str, opened: OpenFile, named: list[tuple[str, str]]
    ) -> dict[str, int]:
        """Checks that a file has some variables of a field type, with dims in order.

        Returns:
            Number of levels to read, for each 3-D variable.

        Raises:
            ValueError: a variable or a level is missing, or has other dims.
        """
        levels = {}
        for dims, name in named:
            array = opened.variable(name)
            if array.dtype.kind not in _NUMBERS:
                raise ValueError(
                    f"{opened.path}: variable {name!r} is of dtype {array.dtype}, "
                    "expected numbers; convert it, or name another variable"
                )
            self._check_dims(field_type, dims, name, opened)
            if dims == "3d":
                indices = self.level_indices(opened, name)
                count = array.shape[array.dims.index(self.level_dim(opened, name))]
                levels[name] = count if indices is None else len(indices)
                known = self.requested.levels
                if known is not None and levels[name] != len(known):
                    raise ValueError(
                        f"{opened.path}: variable {name!r} has {levels[name]} levels, "
                        f"expected {len(known)} as in {self.requested.where}: "
                        f"{list(known)}; give the level coordinate its values, or "
                        f"choose levels by data.source.{self.name}.levels"
                    )
        return levels

    def _check_dims(
        self, field_type: str, dims: str, name: str, opened: OpenFile
    ) -> None:
        """Checks that the dims are time (optional), level, rows, columns."""
        dim_names = [str(dim) for dim in opened.variable(name).dims]
        time = opened.time_coord
        lat, lon = opened.latitude, opened.longitude
        space = [str(c.dims[0]) if c is not None else None for c in (lat, lon)]
        space = space[:1] if self.is_unstructured(opened) else space
        level = self.config.level_coord
        names = [level] if dims == "3d" else []
        names += space
        timed = len(dim_names) > len(names) or (
            field_type != "static" and time in dim_names
        )
        names = [time, *names] if timed else names
        wrong = _differ(dim_names, names)
        if wrong and self.conventions.transposed and len(space) == 2:
            wrong = _differ(dim_names, [*names[:-2], names[-1], names[-2]])
        if wrong:
            shown = [*names[: len(names) - len(space)]]
            shown += [n or d for n, d in zip(space, _SPACE, strict=False)]
            raise ValueError(
                f"{opened.path}: variable {name!r} has dims ({', '.join(dim_names)}), "
                f"expected ({', '.join(n or 'level' for n in shown)}) for a "
                f"{'3-D' if dims == '3d' else '2-D'} {field_type} variable; transpose "
                f"the file, or set time_coord and level_coord of "
                f"data.source.{self.name}"
            )


def _differ(dims: list[str], expected: list[str | None]) -> bool:
    """Whether dims differ from the expected ones, where None matches any dim."""
    return len(dims) != len(expected) or any(
        name not in (None, dim) for dim, name in zip(dims, expected, strict=True)
    )
