"""The sources of a data section, opened: one set of coordinates, one calendar.

Training, forecasts, truths and the further inputs of a model are read by `OpenedData`
at different times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from jaxtyping import Float

from credit_jax.config.data import INPUT_TIMES, TARGET_TIME, DataConfig
from credit_jax.config.sources.source import MAIN_INPUT
from credit_jax.config.transforms import PreblocksConfig
from credit_jax.data.calendars import shift_all
from credit_jax.data.clock import SourceClock, common_calendar, source_clock
from credit_jax.data.schema import ChannelSchema
from credit_jax.data.sources.file_source import FileSource
from credit_jax.data.sources.registry import open_source
from credit_jax.data.sources.source import (
    FileGrid,
    Source,
    SourceFields,
    check_same_files,
)
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.coordinates import Coordinates, GridCoordinates, listed
from credit_jax.transforms.build import predicted_names
from credit_jax.transforms.rollout import DYNAMIC_FORCING

# Days of a year in CREDIT's encoding.
DAYS = 365.25
# (field type, clock of a source) -> (time,) times to read.
Times = Callable[[str, SourceClock], np.ndarray]


@dataclass(frozen=True)
class OpenedData:
    """The sources of a data section; fields are read on access."""

    data: DataConfig  # with the variables that are read
    sources: dict[str, Source]  # those of x first
    clocks: dict[str, SourceClock]  # from the calendar to times of each source
    calendar: str  # of the start times, in which steps are counted

    @property
    def x(self) -> dict[str, Source]:
        every = self.sources.items()
        return {
            name: source for name, source in every if source.config.input == MAIN_INPUT
        }

    def only(self, names: Collection[str]) -> OpenedData:
        """Returns some of the sources, in the same calendar."""
        sources = {name: s for name, s in self.sources.items() if name in names}
        return OpenedData(self.data, sources, self.clocks, self.calendar)

    def shifted(self, times: np.ndarray, step: int) -> np.ndarray:
        """Returns the times `step` steps of the model later."""
        return shift_all(times, step * self.data.time_step, self.calendar)

    def time(self, start: np.datetime64, step: int) -> np.datetime64:
        """The time `step` steps of the model after a start."""
        return self.shifted(np.array([start]), step)[0]

    def read(
        self,
        kinds: Sequence[str],  # in the order of the fields
        times: Times,
        rows: slice | None = None,
        out: SourceFields | None = None,  # key -> array that the field is read to
        *,
        input_name: str = MAIN_INPUT,
    ) -> dict[str, SourceFields]:
        """Reads an input: source -> key -> field (level, time, lat, lon)."""
        return {
            name: {
                key: field
                for kind in kinds
                if getattr(source.config.variables, kind) is not None
                for key, field in source.read(
                    kind, times(kind, self.clocks[name]), rows, out
                ).items()
            }
            for name, source in self.sources.items()
            if source.config.input == input_name
        }

    def missing(self, name: str, kind: str, times: np.ndarray) -> str | None:
        """Why a field type of a source cannot be read at some times; None if it can."""
        source, times = self.sources[name], np.unique(times)
        try:
            source.check(kind, times)
        except (ValueError, OSError) as error:
            return str(error)
        left_out = times[:0] if kind == "static" else times[~source.available(times)]
        if not left_out.size:
            return None
        return (
            f"data.source.{name}.variables.{kind}: {left_out.size} of {times.size} "
            f"times are missing, the first is {str(left_out[0])[:16]}"
        )

    def path_of(self, key: str, time: np.datetime64, step: int = 0) -> str | None:
        """The file of a field; None if it is unknown, as of those of preblocks."""
        name, field_type, _, variable = key.split("/")
        if name not in self.sources:
            return None
        label = self.clocks[name].input_times(self.time(time, step))[-1]
        return self.sources[name].path_of(field_type, variable, label)

    def grids(self) -> Iterator[FileGrid]:
        """The grid of each field type of each source of x."""
        for source in self.x.values():
            yield from source.grids()

    def check_grid(self, grid: tuple[int, int] | None = None) -> None:
        """Checks that all files of x have the model's grid and the same coordinates."""
        first = None
        for source_grid in self.grids():
            shape, first = source_grid.shape, first or source_grid
            if grid is not None and shape != grid:
                raise ValueError(
                    f"{source_grid.where} has a grid of {source_grid.size} (latitude x "
                    f"longitude), the model has image_height {grid[0]} x image_width "
                    f"{grid[1]}; set them to {' and '.join(map(str, shape))}, or take "
                    "other files"
                )
            check_same_files(source_grid, first)

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

    def notes(self) -> list[str]:
        """What the sources of x read otherwise than the config says, one line each."""
        return [note for source in self.x.values() for note in source.notes()]


@dataclass(frozen=True)
class InputData(OpenedData):
    """The data that x and the further inputs of a model are made of."""

    schema: ChannelSchema  # of x, and of y as it is read, without transforms
    further: Mapping[str, ChannelSchema]  # of inputs other than x, before preblocks

    @property
    def further_names(self) -> tuple[str, ...]:
        """Names of the inputs of the model other than x."""
        return *self.further, *self.data.time_encoding

    def fields(self, name: str, start: np.datetime64) -> dict[str, SourceFields]:
        """Reads an input other than x for a step: source -> key -> field."""
        times: Times = lambda _, clock: clock.input_times(start)  # noqa: E731
        return self.read((DYNAMIC_FORCING,), times, input_name=name)

    def vectors(self, start: np.datetime64) -> dict[str, np.ndarray]:
        """Computes the inputs that encode times of a step, (size,) each."""
        steps = {INPUT_TIMES: range(1 - self.data.history_len, 1), TARGET_TIME: (1,)}

        def times(which: str) -> np.ndarray:
            if which not in steps:
                return self.clocks[which].input_times(start)
            return np.stack([self.time(start, step) for step in steps[which]])

        return {
            name: encode_times(np.concatenate([*map(times, which)]))
            for name, which in self.data.time_encoding.items()
        }


def encode_times(times: np.ndarray) -> Float[np.ndarray, " size"]:
    """Sines and cosines of hour of day and day of year (4 time,), float32."""
    # All sines of hours come first, then their cosines, then sines and cosines of days;
    # 1 January is day 1 of 365.25. CREDIT's `encode_datetime64` (data.py).
    seconds = times.astype("datetime64[s]")
    days, years = seconds.astype("datetime64[D]"), seconds.astype("datetime64[Y]")
    hour = (seconds - days).astype(np.int64) / 3600.0
    number = (days - years.astype("datetime64[D]")).astype(np.int64) + 1
    angles = 2 * np.pi * hour / 24, 2 * np.pi * number / DAYS
    parts = [function(angle) for angle in angles for function in (np.sin, np.cos)]
    return np.concatenate(parts).astype(np.float32)


@dataclass(frozen=True)
class NamedData:
    """A data section, and the names of its variables in forecasts."""

    data: DataConfig  # the section
    # Key of a variable -> its key in forecasts, where a preblock `rename` gives it
    # another one.
    names: Mapping[str, str] = field(default_factory=dict)
    # Keys of variables that forecasts have on other levels, to which a preblock
    # `hybrid_level_interp` brings them, or instead of which they have the fields of
    # coefficients.
    moved: frozenset[str] = frozenset()

    @classmethod
    def before(cls, preblocks: PreblocksConfig, data: DataConfig) -> NamedData:
        """The data that some preblocks make the model's input from."""
        return cls(data, *predicted_names(preblocks))


def open_data(
    data: DataConfig,
    open_files: OpenFiles | None = None,
    *,
    like: Coordinates | None = None,
    shared_grid: bool = True,
) -> OpenedData:
    """Opens all sources of a data section, without reading fields."""
    opened = {name: open_source(name, data, open_files) for name in data.source}
    # Preblocks that regrid allow sources of x with grids of their own, as further
    # inputs have.
    grid = GridCoordinates() if like is None or not shared_grid else like.grid
    sources, clocks = dict[str, Source](), dict[str, SourceClock]()
    # Those of x first.
    for name in sorted(opened, key=lambda n: opened[n].config.input != MAIN_INPUT):
        source = opened[name]
        if like is not None and isinstance(source, FileSource):
            source = replace(source, of_run=like.units, read_in={})
        known = {} if like is None else like.sources
        expected = known.get(name, GridCoordinates())
        levels = GridCoordinates(None, None, expected.levels, expected.where)
        if expected.levels is not None:
            source = source.at(levels)
            _check_level_values(source, expected)
        axes = source.axes()
        if shared_grid and source.config.input == MAIN_INPUT:
            grid = grid.over(axes.grid)
            first, other = (grid, levels) if levels.levels is None else (levels, grid)
            expected = first.over(other)
        sources[name] = source = source.at(expected.over(axes))
        try:
            times = source.calendar, source.coverage()
            clocks[name] = source_clock(data, source.config, *times)
        except ValueError as error:
            raise ValueError(f"data.source.{name}: {error}") from None
    calendar = common_calendar(data, clocks)
    if any(clock.mode != "cyclic" for clock in clocks.values()):
        (like or Coordinates()).check_calendar(calendar, "data")
    clocks = {name: replace(clock, master=calendar) for name, clock in clocks.items()}
    return OpenedData(data, sources, clocks, calendar)


def _check_level_values(source: Source, expected: GridCoordinates) -> None:
    """Refuses files whose levels have no values, which are known by their order."""
    if not isinstance(source, FileSource) or source.config.level_values is not None:
        return
    deep = [v for v in source.variables() if v.dims == "3d"]
    by_position = source.conventions.levels == "position"
    if deep and not by_position and all(v.level_values is None for v in deep):
        raise ValueError(
            f"{deep[0].opened.path}: the levels of {deep[0].name} have no values, "
            f"expected {listed(expected.levels)} as in {expected.where}; give the file "
            f"its level coordinate, or name data.source.{source.name}.levels"
        )


def schemas_of(
    data: DataConfig,
    opened: OpenedData,
    num_levels: Mapping[str, int] = MappingProxyType({}),
    like: Coordinates | None = None,
) -> tuple[ChannelSchema, dict[str, ChannelSchema]]:
    """The channels of x and y, and those of each further input, before preblocks."""
    axes = {} if like is None else dict(like.sources)
    axes |= {name: source.axes() for name, source in opened.sources.items()}
    # The section may have variables that are not read.
    levels = {
        name: (opened.sources[name].num_levels if name in opened.sources else 0)
        or len(section.level_values or ())
        or num_levels.get(name, 0)
        for name, section in data.source.items()
    }
    x, *further = (
        ChannelSchema.from_config(data, levels, name, axes)
        for name in (MAIN_INPUT, *data.further_inputs)
    )
    return x, dict(zip(data.further_inputs, further, strict=True))
