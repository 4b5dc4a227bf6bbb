"""The `hrrr` source: GRIB messages of HRRR, found by the inventories of its files."""

import dataclasses
import functools
import importlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.config.data import DataConfig
from credit_jax.data.clock import probe_times
from credit_jax.data.sources.file_variable import common_count
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
from credit_jax.extensions.noaa.sections import HrrrConfig
from credit_jax.io.open_files import OpenFiles
from credit_jax.io.remote import exists, read_bytes

# From this day on, files are in a folder of their region.
_REGIONS = pd.Timestamp("2018-07-12")
_LEVELS = {"wrfprs": " mb", "wrfnat": " hybrid level"}
# Largest difference of a pressure level from the requested one, hPa.
_LEVEL_TOLERANCE = 0.5
# Number of files that are checked before a run.
_MANY_FILES = 200
# Number of cached inventories.
_CACHE_SIZE = 512


@dataclasses.dataclass(frozen=True)
class Message:
    """One line of an inventory."""

    variable: str
    level: str
    step: str
    start: int  # byte in the file
    size: int  # bytes; -1 for all up to the end


def read_inventory(path: str, origin: str) -> tuple[Message, ...]:
    """Reads the inventory of a file."""
    for needed in (path, f"{path}.idx"):
        if not exists(needed):
            raise BadSampleError(f"{origin}: {needed!r} does not exist")
    try:
        return _inventory(f"{path}.idx")
    except (ValueError, IndexError) as error:
        raise ValueError(f"{path}.idx: no inventory of a GRIB file ({error})") from None


@functools.lru_cache(_CACHE_SIZE)
def _inventory(path: str) -> tuple[Message, ...]:
    text = read_bytes(path).decode()
    lines = [line.strip().split(":") for line in text.splitlines() if line.strip()]
    parts = [line for line in lines if len(line) > 5]
    starts = [int(line[1]) for line in parts]
    ends = [*starts[1:], starts[-1] - 1]
    return tuple(
        Message(line[3].strip(), line[4].strip(), line[5].strip(), start, end - start)
        for line, start, end in zip(parts, starts, ends, strict=True)
    )


def decode(path: str, message: Message) -> tuple[Float[np.ndarray, "y x"], Any]:
    """Values of a message, NaN where they are missing, and pygrib's object of it."""
    try:
        pygrib: Any = importlib.import_module("pygrib")
    except ImportError:
        raise ValueError(
            f"{path}: GRIB needs pygrib: pip install credit-jax[grib]"
        ) from None
    content = read_bytes(path, message.start, message.size)
    try:
        decoded = pygrib.fromstring(content)
        values = np.ma.filled(decoded.values, np.nan).astype(np.float32)
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"{path}: the message of {message.variable} ({message.level}) at byte "
            f"{message.start} cannot be decoded ({error}); fetch the file again"
        ) from error
    return values, decoded


@dataclasses.dataclass(frozen=True)
class HrrrSource(Source):
    """Reads HRRR on its Lambert grid; see `Source`."""

    name: str
    config: HrrrConfig
    first_time: np.datetime64  # that has a file
    rows: slice
    columns: slice
    shape: tuple[int, ...] = ()
    num_levels: int = 0  # of its 3-D variables; 0 without any
    calendar: str = "standard"

    def fields(
        self, field_type: str, times: np.ndarray, rows: slice | None = None
    ) -> SourceFields:
        """See `Source.read`."""
        read = functools.partial(self._read_one, field_type, rows=rows)
        return read_times(read, field_type, times)

    def grids(self) -> Iterator[FileGrid]:
        """See `Source.grids`."""
        origin = f"data.source.{self.name}: {self.config.product}"
        yield FileGrid(origin, self.shape, None, None)

    def check(self, field_type: str, times: np.ndarray) -> None:
        """See `Source.check`."""
        for time in times[:: -(-len(times) // _MANY_FILES)] if len(times) else ():
            self.messages(field_type, time)

    def messages(
        self, field_type: str, time: np.datetime64
    ) -> dict[str, tuple[str, list[Message]]]:
        """Finds the messages of a field type: key -> file and a message per level."""
        path, minutes = path_of(self.config, time)
        origin = f"data.source.{self.name}.variables.{field_type}"
        inventory = read_inventory(path, origin)
        selected = {}
        for dims, name in variables_of(self.config, field_type):
            entries = self.config.in_inventory
            if name not in entries:
                raise ValueError(f"{origin}: {name!r} is none of {', '.join(entries)}")
            short, level = entries[name]
            equal = [m for m in inventory if m.variable == short]
            if dims == "3d":
                chosen = self._on_levels(equal, f"{path}: {name}")
            else:
                chosen = [m for m in equal if m.level == level][:1]
            if minutes is not None:
                step = f"{minutes} min fcst"
                chosen = [m for m in equal if (m.level, m.step) == (level, step)][:1]
            if not chosen:
                raise ValueError(
                    f"{path}.idx: no message of {name} ({short}, {level}); {origin}"
                )
            key = field_key(self.name, field_type, dims, name)
            selected[key] = (path, chosen)
        return selected

    def _on_levels(self, messages: list[Message], origin: str) -> list[Message]:
        """Selects the messages of the levels of the config, or of all levels."""
        unit = _LEVELS[self.config.product]
        by_level: dict[float, Message] = {}
        for message in messages:
            text = message.level.removesuffix(unit)
            if text != message.level and text.replace(".", "", 1).isdigit():
                by_level[float(text)] = message
        levels = self.config.levels
        if levels is None:
            down = self.config.product == "wrfprs"
            return [by_level[level] for level in sorted(by_level, reverse=down)]
        limit = _LEVEL_TOLERANCE if self.config.product == "wrfprs" else 1e-6
        chosen, missing = [], []
        for level in levels:
            near = [
                candidate
                for candidate in sorted(by_level)
                if abs(candidate - level) < limit
            ]
            chosen += near[:1]
            missing += [] if near else [level]
        if missing:
            raise ValueError(
                f"{origin}: no level{unit} {missing}; it has {sorted(by_level)}. "
                f"Change data.source.{self.name}.levels"
            )
        return [by_level[level] for level in chosen]

    def _read_one(
        self, field_type: str, time: np.datetime64, rows: slice | None
    ) -> dict[str, Float[np.ndarray, "level y x"]]:
        """Reads all variables of a field type at one time."""
        fields = {}
        for key, (path, messages) in self.messages(field_type, time).items():
            levels = []
            for message in messages:
                values, _ = decode(path, message)
                part = values[self.rows, self.columns]
                levels.append(part if rows is None else part[rows])
            fields[key] = np.stack(levels)
        return fields


def path_of(config: HrrrConfig, time: np.datetime64) -> tuple[str, int | None]:
    """Returns the file of a time, and for `wrfsubh` the minutes since its run began."""
    run: Any = pd.Timestamp(time)
    hour, minutes = config.forecast_hour, None
    if config.product == "wrfsubh":
        # A full hour is the last step of the run of the previous hour.
        minutes = (run.minute - 1) % 60 + 1
        run, hour = run - pd.Timedelta(minutes=minutes), 1
    folder = os.path.join(config.folder, f"hrrr.{run:%Y%m%d}")
    folder = os.path.join(folder, "conus") if run >= _REGIONS else folder
    name = f"hrrr.t{run:%H}z.{config.product}f{hour:02d}.grib2"
    return os.path.join(folder, name), minutes


def open_hrrr(
    name: str, data: DataConfig, open_files: OpenFiles | None = None
) -> HrrrSource:
    """Opens files of NOAA, or those of CREDIT's hrrr_download, in NOAA's folders."""
    config = data.source[name]
    assert isinstance(config, HrrrConfig)
    times = probe_times(data, config)
    tried = (time for time in times[:_MANY_FILES] if exists(path_of(config, time)[0]))
    first_time = next(tried, None)
    if first_time is None:
        path = path_of(config, times[0])[0]
        raise FileNotFoundError(f"data.source.{name}: no file {path!r}")
    full = slice(None)
    source = HrrrSource(name, config, first_time, full, full)
    counts: dict[str, int] = {}
    first: tuple[str, Message] | None = None
    for kind in config.variables.by_type:
        for key, (path, messages) in source.messages(kind, first_time).items():
            first = first or (path, messages[0])
            counts |= {key: len(messages)} if "/3d/" in key else {}
    assert first is not None
    levels = common_count(counts, f"data.source.{name}")
    values, decoded = decode(*first)
    rows, columns = _part(config, *decoded.latlons())
    shape = values[rows, columns].shape
    return HrrrSource(name, config, first_time, rows, columns, shape, levels)


def _part(
    config: HrrrConfig,
    latitude: Float[np.ndarray, "y x"],
    longitude: Float[np.ndarray, "y x"],
) -> tuple[slice, slice]:
    """The smallest part of the grid that contains all points of the extent."""
    if config.extent is None:
        return slice(None), slice(None)
    west, east, south, north = config.extent
    around = [(lon + 180.0) % 360.0 - 180.0 for lon in (longitude, west, east)]
    inside = (latitude >= south) & (latitude <= north)
    inside &= (around[0] >= around[1]) & (around[0] <= around[2])
    parts = [np.flatnonzero(inside.any(axis=axis)) for axis in (1, 0)]
    if not parts[0].size:
        raise ValueError(f"no point of HRRR's grid lies in extent {config.extent}")
    rows, columns = (slice(int(p[0]), int(p[-1]) + 1) for p in parts)
    return rows, columns


HRRR = SourceEntry(HrrrConfig, open_hrrr)
