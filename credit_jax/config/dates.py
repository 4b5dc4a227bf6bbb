"""Dates, time steps and calendars of the data section and its sources."""

import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Annotated, Any

import pandas as pd
from pydantic import AfterValidator, BeforeValidator

from credit_jax.config.base import StrictModel, checked_by
from credit_jax.config.messages import got

# CF names of calendars -> the name that credit_jax uses.
CALENDARS = {
    "standard": "standard",
    "gregorian": "standard",
    "proleptic_gregorian": "standard",
    "noleap": "noleap",
    "365_day": "noleap",
    "all_leap": "all_leap",
    "366_day": "all_leap",
    "julian": "julian",
}
DAYS_360 = (
    "360_day has dates, such as 30 February, that other calendars lack, and file names "
    "and sources are found by date"
)


# Years that datetime64[ns] holds as a whole.
FIRST_YEAR, LAST_YEAR = 1678, 2261

# Dates of ISO 8601 with their time of day and zone; all else is read in several ways.
_ISO = re.compile(
    r"(?:\d{4}(?:-\d{2}(?:-\d{2})?)?|\d{8})"
    r"(?:[T ]\d{2}(?::?\d{2}(?::?\d{2}(?:[.,]\d+)?)?)?"
    r"(?:Z|[+-]\d{2}(?::?\d{2})?)?)?"
)
_DAYS = re.compile(r"(?<=[\d\s])d(?![a-zA-Z])")


def duration(text: str) -> pd.Timedelta:
    """Parses a duration such as "10d" or "6h"; accepts "d", which pandas deprecated."""
    if not re.search("[a-zA-Z]", text):
        raise ValueError(f"{got(text)} has no unit: 6h, 10d")
    length: Any = pd.Timedelta(_DAYS.sub("D", text))
    if length is pd.NaT:
        raise ValueError(f"{got(text)} is no duration")
    return length


def duration_text(length: pd.Timedelta) -> str:
    """A duration as a config has it.

    >>> duration_text(pd.Timedelta(hours=6)), duration_text(pd.Timedelta(minutes=90))
    ('6h', '90min')
    """
    seconds = int(length.total_seconds())
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def date_label(date: Any) -> pd.Timestamp:
    """A date as a label in UTC, without time zone."""
    try:
        iso = not isinstance(date, str) or _ISO.fullmatch(date.strip())
        stamp: Any = pd.Timestamp(date) if iso else pd.NaT
    except ValueError:  # a day that the month lacks, or a year that pandas lacks
        stamp = pd.NaT
    if not FIRST_YEAR <= stamp.year <= LAST_YEAR:
        raise ValueError(
            f"{got(date)} is no date of ISO 8601 in the years {FIRST_YEAR} to "
            f"{LAST_YEAR}, such as 2001-01-31 or 2001-01-31T06:00"
        )
    return stamp.tz_convert(None) if stamp.tz is not None else stamp


def _check_timestep(value: str) -> None:
    with suppress(ValueError):
        if duration(value) > pd.Timedelta(0):
            return
    raise ValueError(f"must be a positive duration such as '6h', got {got(value)}")


def calendar_name(name: str) -> str:
    """The name of a calendar here, by its name in CF conventions."""
    if name.lower() not in CALENDARS:
        why = f" ({DAYS_360})" if name.lower() == "360_day" else ""
        raise ValueError(
            f"calendar {got(name)} is not available{why}; there are: "
            f"{', '.join(CALENDARS)}"
        )
    return CALENDARS[name.lower()]


# Other YAML readers make objects of dates.
_TEXT = BeforeValidator(lambda x: x.isoformat() if hasattr(x, "isoformat") else x)
Date = Annotated[str, _TEXT, checked_by(date_label)]
Timestep = Annotated[str, checked_by(_check_timestep)]
Calendar = Annotated[str, AfterValidator(calendar_name)]


class Dates(StrictModel):
    """The dates of a data section or of a source."""

    start_datetime: Date | None = None
    end_datetime: Date | None = None
    date_ranges: tuple[tuple[Date, Date], ...] | None = None

    def conflicts(self) -> Iterator[str]:
        if self.date_ranges is not None and (self.start_datetime or self.end_datetime):
            yield (
                "date_ranges cannot be combined with start_datetime and end_datetime; "
                "use one or the other"
            )
        pairs = self.date_ranges or ((self.start_datetime, self.end_datetime),)
        ranges = sorted(tuple(map(date_label, pair)) for pair in pairs if all(pair))
        for first, last in ranges:
            if last < first:
                yield f"{first} to {last} ends before it begins; exchange the two dates"
        for (_, last), (first, _) in pairwise(ranges):
            if first <= last:
                yield (
                    f"date_ranges: one begins at {first}, before another ends at "
                    f"{last}; make them one"
                )
