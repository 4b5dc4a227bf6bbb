"""The sources of a data section, opened: one set of coordinates, one calendar."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from credit_jax.config.data import DataConfig
from credit_jax.config.transforms import PreblocksConfig
from credit_jax.data.calendars import shift_all
from credit_jax.data.clock import SourceClock, common_calendar, source_clock
from credit_jax.data.sources.file_source import FileSource
from credit_jax.data.sources.registry import open_source
from credit_jax.data.sources.source import FileGrid, Source
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.coordinates import Coordinates, GridCoordinates, listed
from credit_jax.transforms.build import predicted_names


def arrange(
    sources: Mapping[str, Source],
    like: Coordinates | None = None,
    *,
    shared_grid: bool = True,
) -> dict[str, Source]:
    """Returns sources whose fields have the same rows, columns and levels, in order.

    Args:
        sources: opened sources by name.
        like: the coordinates of a run; None takes those of the first source with known
            ones.
        shared_grid: whether all sources have one grid; False if preblocks regrid, and
            each has its own.

    Raises:
        ValueError: see `Source.at`.
    """
    grid = GridCoordinates() if like is None or not shared_grid else like.grid
    arranged: dict[str, Source] = {}
    for name, source in sources.items():
        if like is not None and isinstance(source, FileSource):
            source = replace(source, of_run=like.units, read_in={})
        expected = (
            GridCoordinates()
            if like is None
            else like.sources.get(name, GridCoordinates())
        )
        if expected.levels is not None:
            source = source.at(
                GridCoordinates(None, None, expected.levels, expected.where)
            )
            _check_level_values(source, expected)
        axes = source.axes()
        if shared_grid:
            levels = GridCoordinates(None, None, expected.levels, expected.where)
            grid = grid.over(axes.grid)
            expected = (
                grid.over(levels) if expected.levels is None else levels.over(grid)
            )
        arranged[name] = source.at(expected.over(axes))
    return arranged


def _check_level_values(source: Source, expected: GridCoordinates) -> None:
    """Refuses files whose levels have no values, of a run that knows its levels.

    Raises:
        ValueError: only the order of the files says which levels theirs are.
    """
    if not isinstance(source, FileSource) or source.config.level_values is not None:
        return
    deep = [v for v in source.variables() if v.is_3d]
    by_position = source.conventions.levels == "position"
    if deep and not by_position and all(v.level_values is None for v in deep):
        raise ValueError(
            f"{deep[0].opened.path}: the levels of {deep[0].name} have no values, "
            f"expected {listed(expected.levels)} as in {expected.where}; give the file "
            f"its level coordinate, or name data.source.{source.name}.levels"
        )


@dataclass(frozen=True)
class OpenedData:
    """The sources of a data section; fields are read on access.

    Training, forecasts, truth and the further inputs of a model are all opened as this.
    """

    data: DataConfig  # with the variables that are read
    sources: dict[str, Source]
    clocks: dict[str, SourceClock]  # from the calendar to times of each source
    calendar: str  # of the start times, in which steps are counted

    @property
    def timestep(self) -> pd.Timedelta:
        """Time between two steps of the model."""
        return self.data.time_step

    def only(self, names: Collection[str]) -> OpenedData:
        """Returns some of the sources, in the same calendar."""
        sources = {name: s for name, s in self.sources.items() if name in names}
        clocks = {name: self.clocks[name] for name in sources}
        return OpenedData(self.data, sources, clocks, self.calendar)

    def shifted(self, times: np.ndarray, step: int) -> np.ndarray:
        """Returns the times `step` steps of the model later."""
        return shift_all(times, step * self.timestep, self.calendar)

    def time(self, start: np.datetime64, step: int) -> np.datetime64:
        """The time `step` steps of the model after a start."""
        return self.shifted(np.array([start]), step)[0]

    def path_of(self, key: str, time: np.datetime64, step: int = 0) -> str | None:
        """The file of a field; None if it is unknown.

        Args:
            key: key of the field; preblocks may have made fields of no file.
            time: a time in the calendar of the starts.
            step: number of steps from `time` to the field.
        """
        name, field_type, _, variable = key.split("/")
        if name not in self.sources:
            return None
        label = self.clocks[name].input_times(self.time(time, step))[-1]
        return self.sources[name].path_of(field_type, variable, label)

    def grids(self) -> Iterator[FileGrid]:
        """The grid of each field type of each source."""
        for source in self.sources.values():
            yield from source.grids()

    def rows_and_columns(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(lat,) and (lon,) degrees of the first grid that has both; None without."""
        for grid in self.grids():
            if grid.latitude is not None and grid.longitude is not None:
                return grid.latitude.astype(float), grid.longitude.astype(float)
        return None

    def coordinates(self) -> Coordinates:
        """The coordinates of the sources, and those of the first grid that has them."""
        axes = {name: source.axes() for name, source in self.sources.items()}
        grid = GridCoordinates()
        for source_axes in axes.values():
            grid = grid.over(source_axes.grid)
        units = {key: unit for key, (unit, _) in self.units().items()}
        return Coordinates(
            **vars(grid), calendar=self.calendar, sources=axes, units=units
        )

    def units(self) -> dict[str, tuple[str, str]]:
        """Key -> unit and file, for the variables whose files have a unit."""
        return {k: unit for s in self.sources.values() for k, unit in s.units().items()}


@dataclass(frozen=True)
class NamedData:
    """A data section, and the names of its variables in forecasts.

    Attributes:
        data: the section.
        names: key of a variable -> its key in forecasts, where a preblock `rename`
            gives it another one.
        moved: keys of variables that forecasts have on other levels, to which a
            preblock `hybrid_level_interp` brings them.
    """

    data: DataConfig
    names: Mapping[str, str] = field(default_factory=dict)
    moved: frozenset[str] = frozenset()

    @classmethod
    def before(cls, preblocks: PreblocksConfig, data: DataConfig) -> NamedData:
        """The data that some preblocks make the model's input from.

        Raises:
            ValueError, OSError: a `rename` or `hybrid_level_interp` is invalid, or the
                file of a rename cannot be read.
        """
        return cls(data, *predicted_names(preblocks))


def open_data(
    data: DataConfig,
    open_files: OpenFiles | None = None,
    *,
    like: Coordinates | None = None,
    shared_grid: bool = True,
) -> OpenedData:
    """Opens all sources of a data section, without reading fields.

    Args:
        data: the data section.
        open_files: cache of open files, shared with other data.
        like: coordinates of a run, at which fields are read; None takes those of the
            first file.
        shared_grid: whether the sources of x have one grid, see `arrange`; each further
            input has its own.

    Raises:
        FileNotFoundError, ValueError: see `open_source`, `arrange`, `source_clock` and
            `common_calendar`.
    """
    x, sources = data.sources_of(), {}
    for names, one_grid in ((x, shared_grid), (data.source.keys() - x, False)):
        ordered = [name for name in data.source if name in names]
        opened = {name: open_source(name, data, open_files) for name in ordered}
        sources |= arrange(opened, like, shared_grid=one_grid)
    clocks = {name: _clock(data, source) for name, source in sources.items()}
    calendar = common_calendar(data, clocks)
    if any(clock.mode != "cyclic" for clock in clocks.values()):
        (like or Coordinates()).check_calendar(calendar, "data")
    clocks = {name: replace(clock, master=calendar) for name, clock in clocks.items()}
    return OpenedData(data, sources, clocks, calendar)


def _clock(data: DataConfig, source: Source) -> SourceClock:
    try:
        return source_clock(data, source.config, source.calendar, source.coverage())
    except ValueError as error:
        raise ValueError(f"data.source.{source.name}: {error}") from None
