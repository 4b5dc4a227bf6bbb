"""Calendars: times as datetime64[ns] labels, and arithmetic in a calendar.

A label is the date and time of day as written. The noleap calendar (365 days in every
year) has a subset of the standard dates, so its times have the same labels; only sums
and ranges differ.
"""

from collections.abc import Iterable
from typing import Any

import cftime
import numpy as np
import pandas as pd
import xarray as xr

STANDARD = "standard"
NOLEAP = "noleap"
_NAMES = {
    "standard": STANDARD,
    "gregorian": STANDARD,
    "proleptic_gregorian": STANDARD,
    "noleap": NOLEAP,
    "365_day": NOLEAP,
}


def calendar_of(times: np.ndarray, where: str) -> str:
    """The calendar of a decoded time coordinate.

    Args:
        times: (time,) datetime64 or cftime objects, as xarray decodes them.
        where: what they come from, for the error.

    Raises:
        ValueError: for a calendar whose dates are not all standard dates.
    """
    if np.issubdtype(times.dtype, np.datetime64):
        return STANDARD
    name = getattr(times[0], "calendar", None) if times.size else STANDARD
    if name not in _NAMES:
        raise ValueError(
            f"{where}: the time coordinate has calendar {name!r}; there are: "
            f"{', '.join(_NAMES)}. Other calendars have dates that the standard one "
            "lacks, or times that xarray cannot decode"
        )
    return _NAMES[name]


def to_labels(times: Iterable) -> np.ndarray:
    """Decoded times, datetime64 or cftime, as (time,) datetime64[ns] labels."""
    times = np.asarray(times)
    if np.issubdtype(times.dtype, np.datetime64):
        return times.astype("datetime64[ns]")
    texts = [f"{t.year:04d}{t.strftime('-%m-%dT%H:%M:%S')}" for t in times.ravel()]
    return np.array(texts, dtype="datetime64[ns]")


def time_range(
    start: pd.Timestamp, end: pd.Timestamp, step: pd.Timedelta, calendar: str
) -> np.ndarray:
    """Labels start, start + step, ... up to end (included), in a calendar."""
    if calendar == STANDARD:
        return pd.date_range(start, end, freq=step).to_numpy("datetime64[ns]")
    first, last = (_to_cftime(label) for label in (start, end))
    freq = pd.tseries.frequencies.to_offset(step)
    times = xr.date_range(first, last, freq=freq, calendar=calendar, use_cftime=True)
    return to_labels(times.values)


def shift(
    label: pd.Timestamp | np.datetime64, by: pd.Timedelta, calendar: str
) -> pd.Timestamp:
    """The label `by` later, in a calendar."""
    stamp: Any = pd.Timestamp(label)
    if calendar == STANDARD:
        return stamp + by
    moved: Any = pd.Timestamp(to_labels([_to_cftime(stamp) + by.to_pytimedelta()])[0])
    return moved


def shift_all(labels: np.ndarray, by: pd.Timedelta, calendar: str) -> np.ndarray:
    """`shift` for an array of labels, datetime64[ns]."""
    if calendar == STANDARD:
        return np.asarray(labels + by.to_timedelta64())
    moved = [shift(label, by, calendar).to_datetime64() for label in labels.ravel()]
    return np.array(moved, dtype="datetime64[ns]").reshape(labels.shape)


def _to_cftime(label: pd.Timestamp) -> cftime.datetime:
    fields = (label.year, label.month, label.day)
    clock = (label.hour, label.minute, label.second)
    try:
        return cftime.datetime(*fields, *clock, calendar=NOLEAP)
    except ValueError:
        raise ValueError(
            f"{label.date()} does not exist in the noleap calendar of the files; "
            "choose other dates"
        ) from None
