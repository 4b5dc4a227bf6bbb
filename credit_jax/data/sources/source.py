"""What a data set asks of a source, whatever it reads from."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config.sources import SourceConfig

# key -> field (level, time, lat, lon), or (level, time, point) on unstructured grids.
Fields: TypeAlias = dict[str, Float[np.ndarray, "_ _ *space"]]


@dataclasses.dataclass(frozen=True)
class Grid:
    """Where the values of a field are.

    Attributes:
        where: the file, or what else the grid comes from, and the variable.
        shape: (latitudes, longitudes), or (points,) on unstructured grids.
        latitude, longitude: (lat,) and (lon,) degrees, or None if they are unknown or
            not the same along rows and columns.
    """

    where: str
    shape: tuple[int, ...]
    latitude: np.ndarray | None
    longitude: np.ndarray | None


class BadSampleError(ValueError):
    """Some times of a source are missing or cannot be read; others can."""


@runtime_checkable
class Source(Protocol):
    """One source of a data section, opened.

    Every source is safe to read from several threads, and opening one reads no field.
    """

    @property
    def name(self) -> str:
        """The key of `data.source`."""
        ...

    @property
    def config(self) -> SourceConfig:
        """Its section."""
        ...

    @property
    def calendar(self) -> str:
        """Calendar of its times."""
        ...

    @property
    def num_levels(self) -> int:
        """Levels of its 3-D variables; 0 without any."""
        ...

    def read(
        self, field_type: str, times: np.ndarray, rows: slice | None = None
    ) -> Fields:
        """All variables of a field type at some times, 3-D before 2-D.

        Args:
            field_type: "prognostic", "dynamic_forcing", "static" or "diagnostic".
            times: (time,) labels, datetime64[ns]; a static field is repeated for each.
            rows: latitude rows to read; None reads all.

        Raises:
            ValueError: if a time or a variable is missing or cannot be read, with the
                file, the variable and the time.
        """
        ...

    def grids(self) -> Iterator[Grid]:
        """The grid of each field type."""
        ...

    def units(self) -> dict[str, tuple[str, str]]:
        """Key -> unit and file of the variables whose files name one."""
        ...

    def coverage(self) -> tuple[pd.Timestamp, pd.Timestamp] | None:
        """First and last time of the first file that has times, if there is one."""
        ...

    def available(self, times: np.ndarray) -> np.ndarray:
        """(...) whether samples may need each time, as far as the source leaves out
        times on its own: runs that were not archived, images of bad quality.
        """
        ...

    def check(self, field_type: str, times: np.ndarray) -> None:
        """Check that all variables can be read at some times, without reading them.

        Raises:
            BadSampleError: some of the times are missing, or a file cannot be opened.
            ValueError: naming the file, what it has, and what was expected.
        """
        ...


class AnyTime:
    """The part of a source that knows neither its first and last time nor its units."""

    def units(self) -> dict[str, tuple[str, str]]:
        """See `Source.units`: unknown here."""
        return {}

    def coverage(self) -> None:
        """Not known without looking for every time."""

    def available(self, times: np.ndarray) -> np.ndarray:
        """All times: a missing one is an error."""
        return np.ones(times.shape, dtype=bool)


def join_times(
    steps: Sequence[Float[np.ndarray, "level *space"]],
) -> Float[np.ndarray, "level time *space"]:
    """Fields of one time each, side by side.

    One time is a view: samples of 0.25 degrees are copied once, into x.
    """
    return steps[0][:, None] if len(steps) == 1 else np.stack(steps, axis=1)


def read_times(
    read: Callable[[np.datetime64], Fields], field_type: str, times: np.ndarray
) -> Fields:
    """The fields of several times; static ones are read at the last one, and repeated.

    Args:
        read: all variables of the field type at one time, (level, *space).
        field_type: see `Source.read`.
        times: (time,) labels.
    """
    static = field_type == "static"
    steps = [read(times[-1])] * len(times) if static else [read(t) for t in times]
    return {key: join_times([step[key] for step in steps]) for key in steps[0]}


def field_key(name: str, field_type: str, dims: str, variable: str) -> str:
    """The key of a field: "{source}/{field_type}/{3d|2d}/{variable}"."""
    return f"{name}/{field_type}/{dims}/{variable}"


def variables_of(config: SourceConfig, field_type: str) -> Iterator[tuple[str, str]]:
    """("3d" or "2d", variable) of a field type, in channel order."""
    field = getattr(config.variables, field_type)
    if field is not None:
        yield from (("3d", name) for name in field.vars_3D)
        yield from (("2d", name) for name in field.vars_2D)
