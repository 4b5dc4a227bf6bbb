"""Observations from files, and what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import xarray as xr

from credit_jax.config.assimilation import Reason
from credit_jax.config.messages import counted
from credit_jax.data.calendars import calendar_of, to_labels
from credit_jax.named_fields.units import comparable, conversion, differ
from credit_jax.named_fields.variables import Variable

_NUMBERS = ("latitude", "longitude", "level", "value", "error")
_NEEDED = ("time", "latitude", "longitude", "variable", "value", "error")
SECTION = "assimilation.observations"
# Smaller errors have weights, 1 / error^2, that float32 does not hold.
_SMALLEST_ERROR, _LARGEST_VALUE = 1e-19, 1e30
# Units of the value, and of the level.
_UNITS, _LEVEL_UNITS = "units", "level_units"
# Where an observation is from, for errors.
_FILE, _ROW = "file", "row"


@dataclass(frozen=True, eq=False)
class TrajectoryGrid:
    """The points of the fields of a forecast."""

    variables: Mapping[str, Variable]
    # Longitudes of the globe, or of a part of it.
    latitude: np.ndarray
    longitude: np.ndarray
    times: np.ndarray  # the start, and every step
    # By name of variable; "" if they are not known.
    units: Mapping[str, str] = field(default_factory=dict)
    level_units: Mapping[str, str] = field(default_factory=dict)
    predicted: frozenset[str] = frozenset()  # what a forecast has, but not its start


def read_observations(
    paths: Iterable[str],
    origin: str = SECTION,
    layout: Callable[[pd.DataFrame], pd.DataFrame] | None = None,
) -> pd.DataFrame:
    """Reads observations, a row each, in the order of the files; NaT, NaN for none."""
    # A layout brings other tables to this one; scores need no errors.
    tables = []
    # NetCDF files have one dim. All need _NEEDED; units and level_units (there also as
    # attributes of value and level) are compared; more is handed to operators.
    for path in map(Path, paths):
        if not path.is_file():
            raise FileNotFoundError(f"{origin}: {path} does not exist")
        try:
            read = _READERS.get(path.suffix.lower())
            table = _netcdf(path) if read is None else read(path)
            if layout is not None:
                table = layout(table).assign(error=1.0)
            if read is not None and "time" in table:
                times: Any = pd.to_datetime(
                    table["time"], format="ISO8601", errors="coerce", utc=True
                )
                _check_read(table["time"], times, "date, such as 2000-01-01T03:00")
                table["time"] = times.dt.tz_localize(None).astype("datetime64[ns]")
        except (ImportError, ValueError) as error:
            raise ValueError(
                f"{origin}: {path} cannot be read as CSV (.csv, with | .psv), "
                f"Parquet (.parquet) or, else, NetCDF: {error}"
            ) from error
        missing = [name for name in _NEEDED if name not in table]
        if missing:
            raise ValueError(
                f"{origin}: {path} lacks {', '.join(missing)}; it has "
                f"{', '.join(map(str, table))}"
            )
        taken = [name for name in (_FILE, _ROW) if name in table]
        if taken:
            raise ValueError(
                f"{origin}: {path} has a column {taken[0]!r}, which "
                "here says where an observation is from; rename it"
            )
        if "level" not in table:
            table["level"] = np.nan
        for name in _NUMBERS:
            numbers: Any = pd.to_numeric(table[name], errors="coerce")
            # Variables without levels may have any text there.
            if name != "level":
                _check_read(table[name], numbers, "number", f"{origin}: {path}: ")
            table[name] = numbers.astype(float)
        # Characters of NetCDF are padded.
        table["variable"] = table["variable"].astype(str).str.strip(" \0")
        table[_FILE], table[_ROW] = str(path), np.arange(1, len(table) + 1)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


_READERS: Mapping[str, Callable[[Path], pd.DataFrame]] = {
    # A comma at the end of all rows would make the first column an index otherwise.
    ".csv": partial(pd.read_csv, skipinitialspace=True, index_col=False),
    ".psv": partial(pd.read_csv, sep="|", index_col=False, low_memory=False),
    ".parquet": lambda path: pd.read_parquet(path),
}


def _check_read(texts: Any, values: Any, subject: str, origin: str = "") -> None:
    """Checks that some of the texts of a column could be read."""
    # Others are faults of single observations.
    present = texts[texts.notna()]
    if len(present) and values.isna().all():
        raise ValueError(
            f"{origin}{texts.name}: none of {counted(len(present), 'value')} can be "
            f"read, the first is {present.iloc[0]!r}; expected a {subject}"
        )


def _netcdf(path: Path) -> pd.DataFrame:
    with xr.open_dataset(path) as file:
        if len(file.dims) != 1:
            raise ValueError(
                "its variables must have one dim, of observations, got "
                f"{', '.join(map(str, file.dims)) or 'none'}"
            )
        columns = {
            str(name): np.asarray(x.values) for name, x in file.variables.items()
        }
        units = {name: x.attrs.get("units") for name, x in file.variables.items()}
    if differ(*(str(units.get(name) or "") for name in ("value", "error"))):
        raise ValueError(
            f"its error is in {units['error']} and its value in {units['value']}; "
            "expected one unit"
        )
    if "time" in columns:
        calendar_of(columns["time"].ravel(), str(path))
        columns["time"] = to_labels(columns["time"], str(path))
    for name, values in columns.items():
        if values.dtype.kind == "S":
            columns[name] = np.char.decode(values)
    table = pd.DataFrame(columns)
    for name, column in (("value", _UNITS), ("level", _LEVEL_UNITS)):
        if column not in table and units.get(name):
            table[column] = str(units[name])
    return table


def first_row(row: Any, text: str) -> str:
    """Where the first observation of some is from, and a text on it."""
    return f"the first is row {row[_ROW]} of {row[_FILE]}: {text}"


def place_of(row: Any) -> str:
    """What an observation is of, when, and where, in words."""
    level = "" if math.isnan(row["level"]) else f", level {row['level']:g}"
    return (
        f"{row['variable']} at {row['time']}, latitude {row['latitude']:g}, longitude "
        f"{row['longitude']:g}{level}"
    )


@dataclass(frozen=True)
class Faults:
    """What is wrong with observations."""

    reasons: np.ndarray  # (observation,) a `Reason`, or ""
    first: Mapping[str, tuple[int, str]]  # reason -> row, and what is wrong there

    def lines(self, table: pd.DataFrame, of: Sequence[str]) -> list[str]:
        """A line for each reason of some: how many, and the first."""
        lines = []
        for reason in of:
            if reason in self.first:
                index, text = self.first[reason]
                row, count = table.iloc[index], np.sum(self.reasons == reason)
                lines.append(
                    f"{reason}: {count} of {len(table)}, {first_row(row, text)}"
                )
        return lines


def find_faults(
    table: pd.DataFrame, grid: TrajectoryGrid, num_steps: int, operators: Iterable[str]
) -> Faults:
    """Compares observations with what forecasts have."""
    reasons = np.full(len(table), "", object)
    first: dict[str, tuple[int, str]] = {}

    def mark(reason: Reason, wrong: Any, text: Callable[[Any], str]) -> None:
        (indices,) = np.nonzero(np.asarray(wrong) & (reasons == ""))
        reasons[indices] = reason
        if len(indices) and indices[0] < first.get(reason, (len(table), ""))[0]:
            first[reason] = int(indices[0]), text(table.iloc[indices[0]])

    names, times = table["variable"].to_numpy(), table["time"].to_numpy()
    with_operator = np.isin(names.astype(str), [*operators])
    recognized = np.array([name in grid.variables for name in names], bool)
    start, end = grid.times[0], grid.times[-1]
    mark(
        "time",
        ~((times >= start) & (times < end)),
        lambda row: (
            f"{row['time']} is not from {str(start)[:16]} to before {str(end)[:16]}"
            if pd.notna(row["time"])
            else "no date that can be read, such as 2000-01-01T03:00"
        ),
    )
    mark(
        "variable",
        ~recognized & ~with_operator,
        lambda row: f"no {row['variable']}; there are {', '.join(grid.variables)}",
    )
    # The start of a window has no diagnostic variables to interpolate from.
    first_step = (np.searchsorted(grid.times, times, "right") - 1) % num_steps == 0
    mark(
        "time",
        first_step & np.isin(names.astype(str), [*grid.predicted]) & ~with_operator,
        lambda row: (
            f"{row['variable']} at {row['time']}; forecasts have it from the end of "
            "the first step of a window on"
        ),
    )
    latitude = table["latitude"].to_numpy()
    south, north = grid.latitude.min(), grid.latitude.max()
    inside = (latitude >= south - 1e-6) & (latitude <= north + 1e-6)
    longitude = table["longitude"].to_numpy()
    west, width = _columns(grid.longitude)
    # A column of the grid itself may be rounded to just west of it.
    inside &= (np.abs(longitude) <= 360) & (
        (longitude - west + 1e-6) % 360 <= width + 2e-6
    )
    columns = f", the columns from {west:g} to {west + width:g}" * (width < 360)
    mark(
        "place",
        ~inside,
        lambda row: (
            f"latitude {row['latitude']:g}, longitude {row['longitude']:g}; the rows "
            f"are from {south:g} to {north:g}{columns}"
        ),
    )
    for column, recognized, subject in (
        (_UNITS, grid.units, "{variable} in {units}, and the model's is"),
        (
            _LEVEL_UNITS,
            grid.level_units,
            "{variable} at level {level:g} in {level_units}, and the model's levels "
            "are",
        ),
    ):
        pairs = [*zip(names, _texts(table, column), strict=True)]
        others = {
            (name, unit): differ(unit, recognized.get(name, ""))
            for name, unit in {*pairs}
        }
        mark(
            "units",
            np.array([others[pair] for pair in pairs], bool) & ~with_operator,
            lambda row, subject=subject, recognized=recognized: (
                f"{subject.format_map(row)} in {recognized[row['variable']]}"
            ),
        )
    levels = table["level"].to_numpy()
    for name, variable in grid.variables.items():
        if variable.levels is not None:
            low, high = variable.levels.min(), variable.levels.max()
            mark(
                "level",
                (names == name)
                & ~with_operator
                & ~((levels >= low) & (levels <= high)),
                lambda row, low=low, high=high: (
                    f"{row['variable']} at level {row['level']:g}; its levels are from "
                    f"{low:g} to {high:g}"
                ),
            )
    mark(
        "value",
        ~(np.abs(table["value"]) < _LARGEST_VALUE),
        lambda row: f"got {row['value']:g}, expected a number",
    )
    mark(
        "error",
        ~(np.isfinite(table["error"]) & (table["error"] > _SMALLEST_ERROR)),
        lambda row: (
            f"got {row['error']:g}, expected a number above {_SMALLEST_ERROR:g}"
        ),
    )
    flat = [n for n, x in grid.variables.items() if x.levels is None]
    without_level = np.isin(names.astype(str), flat) & ~with_operator
    equal = table.drop(columns=[_FILE, _ROW]).assign(
        longitude=table["longitude"] % 360,
        level=np.where(without_level, np.nan, levels),
    )
    mark(
        "duplicate",
        equal.duplicated(),
        lambda row: f"{row['variable']} at {row['time']} repeats an earlier row",
    )
    return Faults(reasons, first)


def _columns(longitude: np.ndarray) -> tuple[float, float]:
    """West edge and width of a grid's columns; 360 where they go around the globe."""
    # The gap to the first column once more; of one column it is the circle.
    columns = np.unique(longitude % 360)
    gaps = np.diff(columns, append=columns[0] + 360)
    widest = int(gaps.argmax())
    if gaps[widest] < 1.5 * np.median(gaps):
        return 0.0, 360.0
    return float(columns[(widest + 1) % len(columns)]), float(360 - gaps[widest])


def in_units_of(
    table: pd.DataFrame, grid: TrajectoryGrid, operators: Iterable[str]
) -> pd.DataFrame:
    """Observations, with errors and levels, converted to the units of the model."""
    table, names = table.copy(), table["variable"]
    for column, recognized, values, spreads in (
        (_UNITS, grid.units, "value", ["error"]),
        (_LEVEL_UNITS, grid.level_units, "level", []),
    ):
        units = _texts(table, column)
        for name, unit in {*zip(names, units, strict=True)}:
            to = recognized.get(name, "")
            change = conversion(unit, to) if differ(unit, to) else None
            if name in operators or change is None:
                continue
            rows = (names == name) & (units == unit)
            table.loc[rows, values] = table.loc[rows, values] * change[0] + change[1]
            for spread in spreads:
                table.loc[rows, spread] *= abs(change[0])
            table.loc[rows, column] = to
    return table


def notes_on_units(
    table: pd.DataFrame,
    grid: TrajectoryGrid,
    operators: Iterable[str],
    origin: str = SECTION,
) -> list[str]:
    """Lines on observations whose units are not compared."""
    names = table["variable"].where(~table["variable"].isin([*operators]))
    units, notes = _texts(table, _UNITS), []
    counts = names.where(units == "").value_counts(sort=False)
    if len(counts):
        each = ", ".join(
            f"{count} of {name} in {grid.units.get(str(name)) or 'unknown units'}"
            for name, count in counts.items()
        )
        notes.append(
            f"{origin}: those without units are read in the model's: "
            f"{each}; a column units is compared"
        )
    named = names.where(units != "")
    pairs: Any = named.groupby([named, units]).size().items()
    each = [
        f"{count} of {name} in {unit} (the model's: {recognized or 'unknown'})"
        for (name, unit), count in pairs
        if not comparable(unit, recognized := grid.units.get(name, ""))
    ]
    if each:
        notes.append(
            f"{origin}: units that cannot be compared, and are taken for the model's: "
            f"{', '.join(each)}"
        )
    return notes


def _texts(table: pd.DataFrame, column: str) -> pd.Series:
    """A column of texts, "" where there is none."""
    texts: Any = table.get(column, pd.Series("", table.index))
    return texts.where(texts.notna(), "").astype(str).str.strip()


def usable(
    table: pd.DataFrame,
    faults: Faults,
    leave_out: Sequence[str],
    origin: str = SECTION,
) -> tuple[pd.DataFrame, list[str]]:
    """The observations without those that are left out, and lines that name these."""
    refused = faults.lines(table, [r for r in get_args(Reason) if r not in leave_out])
    if refused:
        reasons = ", ".join(line.partition(":")[0] for line in refused)
        advice = f", or leave them out by assimilation.leave_out: [{reasons}]"
        raise ValueError(
            f"{origin}: observations that cannot be used:\n"
            + "\n".join(f"  {line}" for line in refused)
            + f"\n  correct them{advice if origin == SECTION else ''}"
        )
    left = table.loc[faults.reasons == ""].reset_index(drop=True)
    lines = faults.lines(table, leave_out)
    if table.empty:
        raise ValueError(f"{origin}: the files have no observations")
    if left.empty:
        full = "\n".join(f"  {line}" for line in lines)
        raise ValueError(f"{origin}: none of {len(table)} can be used:\n{full}")
    return left, lines
