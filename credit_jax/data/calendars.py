"""Calendars: times as datetime64[ns] labels, and arithmetic in a calendar.

A label is the date and time of day of a time, whatever its calendar. Sums and ranges of
times depend on the calendar, since calendars differ in their dates: noleap (365 days in
every year) has no 29 February, all_leap and julian have more of them than the standard
calendar. A date that the standard calendar does not have has no label.

Differs from CREDIT: a 29 February without a label is an error when times are read;
CREDIT fails when it looks up a file by such a date. Times outside of 1678 to 2261, the
whole years of datetime64[ns], are an error.
"""

from collections.abc import Iterable
from typing import Any

import cftime
import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Int

from credit_jax.config.dates import FIRST_YEAR, LAST_YEAR, calendar_name
from credit_jax.io.errors import errors_of

STANDARD = "standard"
# Largest rounding of the times of a file.
ROUNDING = np.timedelta64(60, "s")


def calendar_of(times: np.ndarray, origin: str) -> str:
    """Returns the calendar of a time coordinate, as xarray decodes it."""
    if np.issubdtype(times.dtype, np.datetime64):
        return STANDARD
    name = getattr(times[0], "calendar", None) if times.size else STANDARD
    if name is None:
        raise ValueError(
            f"{origin}: the time coordinate holds {times.dtype} ({times[0]}, ...) and "
            "no dates; give it units such as 'hours since 1979-01-01'"
        )
    with errors_of(f"{origin}: the time coordinate"):
        return calendar_name(name)


def names_of_times(dataset: xr.Dataset) -> list[str]:
    """The coordinates whose values are dates, in any calendar."""
    names = []
    for name, coordinate in dataset.coords.items():
        values: Any = coordinate.values
        if values.size and (
            values.dtype.kind == "M" or hasattr(values.flat[0], "calendar")
        ):
            names.append(str(name))
    return names


def to_labels(times: Iterable, origin: str = "times") -> np.ndarray:
    """(time,) datetime64[ns] labels of decoded times, datetime64 or cftime."""
    times = np.asarray(times)
    if np.issubdtype(times.dtype, np.datetime64):
        seconds = times.astype("datetime64[s]")
        years = seconds.astype("datetime64[Y]").astype(np.int64) + 1970
        _check_years(years[~np.isnat(seconds)], origin)
        return times.astype("datetime64[ns]")
    _check_years(np.array([t.year for t in times.ravel()], dtype=np.int64), origin)
    labels = []
    for time in times.ravel():
        text = f"{time.year:04d}{time.strftime('-%m-%dT%H:%M:%S')}"
        try:
            labels.append(np.datetime64(text, "ns"))
        except ValueError:
            raise ValueError(
                f"{origin}: {text} of the calendar {time.calendar} is no date of the "
                "standard calendar, and files are found by such dates; leave it out"
            ) from None
    return np.array(labels, dtype="datetime64[ns]")


def as_dates(labels: np.ndarray, calendar: str) -> list[Any]:
    """Labels as pandas Timestamps, or cftime dates in other calendars."""
    stamps: list[Any] = [pd.Timestamp(label) for label in labels]
    if calendar == STANDARD:
        return stamps
    return [_to_cftime(stamp, calendar) for stamp in stamps]


def time_range(
    start: pd.Timestamp, end: pd.Timestamp, step: pd.Timedelta, calendar: str
) -> np.ndarray:
    """Labels start, start + step, ... up to and including end, in a calendar."""
    if calendar == STANDARD:
        return pd.date_range(start, end, freq=step).to_numpy("datetime64[ns]")
    first, last = (_to_cftime(label, calendar) for label in (start, end))
    freq = pd.tseries.frequencies.to_offset(step)
    times = xr.date_range(first, last, freq=freq, calendar=calendar, use_cftime=True)
    return to_labels(times.values)


def shift(
    label: pd.Timestamp | np.datetime64, by: pd.Timedelta, calendar: str
) -> pd.Timestamp:
    """Adds `by` to a label, in a calendar."""
    stamp: Any = pd.Timestamp(label)
    if calendar == STANDARD:
        return stamp + by
    moved = to_labels([_to_cftime(stamp, calendar) + by.to_pytimedelta()])
    result: Any = pd.Timestamp(moved[0])
    return result


def shift_all(labels: np.ndarray, by: pd.Timedelta, calendar: str) -> np.ndarray:
    """Adds `by` to an array of labels, datetime64[ns], in a calendar."""
    if calendar == STANDARD:
        return np.asarray(labels + by.to_timedelta64())
    moved = [shift(label, by, calendar).to_datetime64() for label in labels.ravel()]
    return np.array(moved, dtype="datetime64[ns]").reshape(labels.shape)


def to_cycle_year(labels: np.ndarray, year: int, calendar: str) -> np.ndarray:
    """Moves labels into one year; 29 February becomes 28 if that year has none."""
    months = labels.astype("datetime64[M]")
    in_month = labels - months.astype("datetime64[ns]")
    month = months.astype(np.int64) % 12
    leap = calendar != "noleap" and pd.Timestamp(year, 1, 1).is_leap_year
    day = np.timedelta64(1, "D")
    beyond = (month == 1) & (in_month >= 28 * day) & (not leap)
    in_month = in_month - beyond * day
    moved = np.datetime64(year - 1970, "Y").astype("datetime64[M]") + month
    return moved.astype("datetime64[ns]") + in_month


def most_restrictive(calendars: Iterable[str]) -> str:
    """Returns the calendar of a clock that several sources share."""
    others = sorted({name for name in calendars if name != STANDARD})
    if len(others) > 1:
        raise ValueError(
            f"data.source: the sources have the calendars {', '.join(others)}; start "
            "times can be in one of them only: split the run, or convert a source"
        )
    return others[0] if others else STANDARD


def _check_years(years: np.ndarray, origin: str) -> None:
    bad = years[(years < FIRST_YEAR) | (years > LAST_YEAR)]
    if bad.size:
        raise ValueError(
            f"{origin}: has times in the year {bad[0]}, outside of {FIRST_YEAR} to "
            f"{LAST_YEAR}, which is what datetime64[ns] holds; shift the years of the "
            "time axis"
        )


def _to_cftime(label: pd.Timestamp, calendar: str) -> cftime.datetime:
    fields = (label.year, label.month, label.day)
    clock = (label.hour, label.minute, label.second)
    try:
        return cftime.datetime(*fields, *clock, calendar=calendar)
    except ValueError:
        raise ValueError(
            f"{label.date()} does not exist in the {calendar} calendar of the files; "
            "choose other dates"
        ) from None


def near_times(
    requested: np.ndarray, available: np.ndarray, origin: str
) -> Int[np.ndarray, " requested"]:
    """Positions of times in an axis, whose rounding may be a minute; -1 for none."""
    # Axes in days or hours of float32 are off by seconds. A time is the nearest one of
    # the axis, if that is less than `ROUNDING`, and a quarter of the smallest step of
    # the axis, away.
    available = available.astype("datetime64[ns]")
    order = np.argsort(available, kind="stable")
    ordered = available[order]
    steps = np.diff(ordered)
    if (steps == np.timedelta64(0, "ns")).any():
        twice = ordered[1:][steps == np.timedelta64(0, "ns")][0]
        raise ValueError(
            f"{origin}: the time {str(twice)[:19]} occurs more than once; which "
            "of its fields is meant cannot be known, remove the others"
        )
    if not available.size:
        return np.full(requested.shape, -1)
    limit = min([ROUNDING, *([steps.min() / 4] if steps.size else [])])
    right = np.searchsorted(ordered, requested).clip(0, len(ordered) - 1)
    left = np.maximum(right - 1, 0)
    nearer = np.abs(ordered[left] - requested) <= np.abs(ordered[right] - requested)
    near = np.where(nearer, left, right)
    is_near = np.abs(ordered[near] - requested) <= limit
    return np.where(is_near, order[near], -1)


def rounding_of(requested: np.ndarray, times: np.ndarray, origin: str) -> str | None:
    """A note on times that a file has with a rounding; None if they are exact."""
    off = np.abs(times.astype("datetime64[ns]") - requested)
    if not off.size or not off.max():
        return None
    index = int(off.argmax())
    seconds = off[index] / np.timedelta64(1, "s")
    return (
        f"{origin}: its times are rounded, by up to {seconds:.3g} s: "
        f"{str(times[index])[:19]} is taken for {str(requested[index])[:19]}"
    )
