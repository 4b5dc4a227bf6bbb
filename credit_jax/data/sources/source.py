"""The base class of sources."""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config.sources.source import SourceConfig
from credit_jax.named_fields import coordinates
from credit_jax.named_fields.coordinates import GridCoordinates, as_values, indices_of

# key -> field (level, time, lat, lon), or (level, time, point) on unstructured grids;
# variables may be on several ones that preblocks bring to one.
SourceFields: TypeAlias = dict[str, Float[np.ndarray, "_ _ ..."]]


@dataclasses.dataclass(frozen=True)
class FileGrid:
    """The grid of a field."""

    where: str  # the file or other origin, and the variable, for errors
    shape: tuple[int, ...]  # (latitudes, longitudes), or (points,)
    latitude: np.ndarray | None  # degrees; None if unknown or varying in rows
    longitude: np.ndarray | None

    @property
    def size(self) -> str:
        """The shape as text, for errors."""
        text = " x ".join(map(str, self.shape))
        return f"{text} points" if len(self.shape) == 1 else text


def check_same_files(grid: FileGrid, first: FileGrid) -> None:
    """Checks that two files have the same grid in the same order."""
    if grid.shape != first.shape:
        raise ValueError(
            f"{grid.where} has a grid of {grid.size}, but {first.where} has "
            f"{first.size}; bring both to one grid"
        )
    expected, axes = ((x.latitude, x.longitude) for x in (first, grid))
    coordinates.check_shared_grid(expected, axes, grid.where, first.where)


class BadSampleError(ValueError):
    """An error for times of a source that are missing or cannot be read."""


class Source(abc.ABC):
    """An opened source of a data section; the base class of all sources.

    Sources are thread-safe, and opening one reads no field. By default, attributes,
    files, and first and last time of a source are unknown, and its fields are in one
    order, which is compared with that of others.

    Attributes:
        name: key of the source in `data.source`.
        config: section of the source.
        calendar: calendar of its times.
        num_levels: number of levels of its 3-D variables; 0 without any.
    """

    name: str
    config: Any
    calendar: str
    num_levels: int

    def fields(
        self, field_type: str, times: np.ndarray, rows: slice | None = None
    ) -> SourceFields:
        """Does what `read` does without `out`, which calls it."""
        raise NotImplementedError

    def read(
        self,
        field_type: str,
        times: np.ndarray,
        rows: slice | None = None,
        out: Mapping[str, Float[np.ndarray, "_ _ *space"]] | None = None,
    ) -> SourceFields:
        """Reads all variables of a field type at some times, 3-D before 2-D.

        Args:
            field_type: "prognostic", "dynamic_forcing", "static" or "diagnostic".
            times: (time,) labels, datetime64[ns]; a static field is repeated for each.
            rows: latitude rows to read; None reads all.
            out: key -> float32 array of any strides to which a field is written, which
                is then returned for the key; others are new or shared, and read-only.

        Raises:
            ValueError: a time or a variable is missing or cannot be read; names the
                file, the variable and the time.
            OSError: the storage failed at every attempt.
        """
        fields = self.fields(field_type, times, rows)
        for key, to in (out or {}).items():
            if key in fields:
                to[...] = fields[key]
                fields[key] = to
        return fields

    @abc.abstractmethod
    def grids(self) -> Iterator[FileGrid]:
        """The grid of each field type."""

    @abc.abstractmethod
    def check(self, field_type: str, times: np.ndarray) -> None:
        """Checks that all variables can be read at some times, without reading them.

        Raises:
            BadSampleError: some of the times are missing, or a file cannot be opened.
            ValueError: a file does not match the config.
        """

    def axes(self) -> GridCoordinates:
        """The coordinates of its fields."""
        grid = next(iter(self.grids()))
        levels = as_values(self.config.level_values) if self.num_levels else None
        axes = as_values(grid.latitude), as_values(grid.longitude), levels
        return GridCoordinates(*axes, where=grid.where)

    def at(self, axes: GridCoordinates) -> "Source":
        """Returns the source with fields at some coordinates, in their order.

        A file whose coordinates differ is an error when it is read or checked.

        Raises:
            ValueError: the coordinates or their order differ, and no file says so.
        """
        grid = next(iter(self.grids()))
        expected = (None if x is None else np.array(x) for x in axes.values[:2])
        check_same_files(grid, FileGrid(axes.where, grid.shape, *expected))
        levels = self.axes().levels
        pair = grid.where, axes.where
        indices = indices_of(axes.levels, levels, "level", *pair, of_run=True)
        coordinates.check_order(
            [indices], f"data.source.{self.name}.levels {levels}", *pair
        )
        return self

    def attributes(self) -> dict[str, dict[str, str]]:
        """Key -> standard_name, long_name and units, those that the files have.

        The key of the level coordinate is "SOURCE/level".
        """
        return {}

    def units(self) -> dict[str, tuple[str, str]]:
        """Key -> unit and file, for the variables whose files have a unit."""
        return {}

    def notes(self) -> list[str]:
        """What is read otherwise than the config says, one line each."""
        return []

    def path_of(
        self, field_type: str, variable: str, time: np.datetime64
    ) -> str | None:
        """The file of a variable at a time; None if there is none, or many."""
        return None

    def coverage(self) -> tuple[pd.Timestamp, pd.Timestamp] | None:
        """First and last time of the first file with times; None if there is none."""
        return None

    def available(self, times: np.ndarray) -> np.ndarray:
        """(...) whether each time may be used by samples.

        It is False for times that a source leaves out without an error, such as runs
        that were not archived, or images of bad quality.
        """
        return np.ones(times.shape, dtype=bool)


def join_times(
    steps: Sequence[Float[np.ndarray, "level *space"]],
) -> Float[np.ndarray, "level time *space"]:
    """Stacks fields of one time each along a new time dim."""
    # A single time is a view, so that large samples are copied only once, into x.
    return steps[0][:, None] if len(steps) == 1 else np.stack(steps, axis=1)


def read_times(
    read: Callable[[np.datetime64], SourceFields], field_type: str, times: np.ndarray
) -> SourceFields:
    """Reads fields (level, *space) of several times; static ones once, at the last."""
    static = field_type == "static"
    steps = [read(times[-1])] * len(times) if static else [read(t) for t in times]
    return {key: join_times([step[key] for step in steps]) for key in steps[0]}


def field_key(name: str, field_type: str, dims: str, variable: str) -> str:
    """The key of a field: "{source}/{field_type}/{3d|2d}/{variable}"."""
    return f"{name}/{field_type}/{dims}/{variable}"


def variables_of(config: SourceConfig, field_type: str) -> Iterator[tuple[str, str]]:
    """Yields ("3d" or "2d", variable) for a field type, in channel order."""
    field = getattr(config.variables, field_type)
    if field is not None:
        yield from (("3d", name) for name in field.vars_3D)
        yield from (("2d", name) for name in field.vars_2D)
