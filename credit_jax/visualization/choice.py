"""The fields that a user asks for by name, level, lead time and date."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from credit_jax.config.dates import duration
from credit_jax.io.forecast_files import MEMBER, Forecasts, level_dim
from credit_jax.visualization.labels import lead_text

MEAN, SPREAD = "mean", "spread"


@dataclass(frozen=True)
class Choice:
    """A variable at one level of forecasts from one start date.

    Attributes:
        forecasts: where they are.
        variable: its name.
        start: number of the start date.
        level_dim: the dim of its levels; None without levels.
        level: position in it.
        level_value: the level.
        member: number of a member, MEAN or SPREAD; None without an ensemble.
    """

    forecasts: Forecasts
    variable: str
    start: int
    level_dim: str | None = None
    level: int = 0
    level_value: float | None = None
    member: int | str | None = None

    def field(self, lead: int) -> xr.DataArray:
        """The field at a lead time, in memory: (latitude, longitude) or (y, x)."""
        places = {self.level_dim: self.level} if self.level_dim else {}
        names = [self.variable]
        found = self.forecasts.read(self.start, lead, names, **places)[self.variable]
        if self.member is None:
            return found
        if self.member == MEAN:
            return found.mean(MEMBER, keep_attrs=True)
        if self.member == SPREAD:
            return found.std(MEMBER, ddof=1, keep_attrs=True)
        return found.isel({MEMBER: self.member}, drop=True)

    @property
    def label(self) -> str:
        """Variable and level."""
        if self.level_value is None:
            return self.variable
        return f"{self.variable}{self.level_value:g}"

    @property
    def units(self) -> str:
        """Units of the variable; empty if they are not known."""
        return str(self.forecasts.layout[self.variable].attrs.get("units", ""))

    def title(self, lead: int) -> str:
        """What is shown, of when."""
        start, length = self.forecasts.starts[self.start], self.forecasts.leads[lead]
        whose = {None: "", MEAN: "ensemble mean of ", SPREAD: "spread of "}.get(
            self.member, f"member {self.member} of "
        )
        return (
            f"{whose}{self.label}, {lead_text(length)} from {date_text(start)}, valid "
            f"{date_text(valid_time(start, length))}"
        )


def choose(
    forecasts: Forecasts,
    variable: str,
    *,
    level: float | None = None,
    init_time: str | None = None,
    member: str | None = None,
) -> Choice:
    """Finds what a user asks for.

    Args:
        forecasts: where to look.
        variable: its name.
        level: needed for variables of several levels.
        init_time: start date; needed if there are several.
        member: a number, "mean" or "spread"; None is the mean of an ensemble.

    Raises:
        ValueError: it is not there; says what is.
    """
    layout = forecasts.layout
    names = [str(name) for name in layout.data_vars]
    if variable not in names:
        near = get_close_matches(variable, names, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(
            f"--variable: no {variable!r} in the forecasts; there are: "
            f"{', '.join(names)}{hint}"
        )
    start = _start(forecasts, init_time)
    dim = level_dim(layout[variable])
    place, value = _level(layout[variable], dim, level)
    return Choice(
        forecasts, variable, start, dim, place, value, _member(forecasts, member)
    )


def _level(
    array: xr.DataArray, dim: str | None, level: float | None
) -> tuple[int, float | None]:
    if dim is None:
        if level is not None:
            raise ValueError(f"--level: {array.name} has no levels, got {level:g}")
        return 0, None
    known = dim in array.coords
    values = array[dim].values.astype(float) if known else np.arange(array.sizes[dim])
    listed = ", ".join(f"{own:g}" for own in values)
    if level is None:
        if len(values) > 1:
            raise ValueError(f"--level: {array.name} needs one of {listed}")
        return 0, float(values[0])
    place = int(np.argmin(np.abs(values - level)))
    if not np.isclose(values[place], level, rtol=1e-4):
        raise ValueError(
            f"--level: {array.name} has no level {level:g}; there are: {listed}; the "
            f"nearest is {values[place]:g}"
        )
    return place, float(values[place])


def find_lead(leads: np.ndarray, text: str) -> int:
    """The number of a lead time such as "5d" or "36h".

    Raises:
        ValueError: that is no duration, or not there; says which is the nearest.
    """
    try:
        wanted = np.timedelta64(duration(text).value, "ns")
    except ValueError:
        raise ValueError(f"--lead: {text!r} is no duration such as 5d or 36h") from None
    place = int(np.argmin(np.abs(leads - wanted)))
    if leads[place] != wanted:
        raise ValueError(
            f"--lead: no lead time {text}; there are {len(leads)} from "
            f"{lead_text(leads[0])} to {lead_text(leads[-1])}; the nearest is "
            f"{lead_text(leads[place])}"
        )
    return place


def _start(forecasts: Forecasts, init_time: str | None) -> int:
    starts = forecasts.starts
    if not len(starts):
        raise ValueError("the store holds no forecasts: it has no start date")
    first, last = date_text(starts[0]), date_text(starts[-1])
    if init_time is None:
        if len(starts) == 1:
            return 0
        raise ValueError(
            f"--init-time: needed, since there are {len(starts)} start dates from "
            f"{first} to {last}"
        )
    try:
        wanted: Any = pd.Timestamp(init_time)
    except ValueError:
        raise ValueError(
            f"--init-time: {init_time!r} is no date such as 2001-06-01T00"
        ) from None
    texts = [date_text(own) for own in starts]
    if (text := date_text(wanted)) in texts:
        return texts.index(text)
    near = min(texts, key=lambda own: abs(pd.Timestamp(own) - wanted))
    raise ValueError(
        f"--init-time: no forecast from {text}; there are {len(starts)} from {first} "
        f"to {last}; the nearest is {near}"
    )


def _member(forecasts: Forecasts, member: str | None) -> int | str | None:
    count = forecasts.members
    if count is None:
        if member is not None:
            raise ValueError(f"--member: the forecasts have no members, got {member}")
        return None
    if member in (None, MEAN):
        return MEAN
    if member == SPREAD:
        return SPREAD
    if member.isdigit() and int(member) < count:
        return int(member)
    raise ValueError(
        f"--member: no member {member!r}; there are 0 to {count - 1}, {MEAN} and "
        f"{SPREAD}"
    )


def valid_time(start: Any, lead: np.timedelta64) -> Any:
    """The time of a forecast, in the calendar of its start date."""
    if isinstance(start, np.datetime64):
        return start + lead
    return start + lead.astype("timedelta64[us]").item()


def date_text(date: Any) -> str:
    """A date to the minute.

    >>> date_text(np.datetime64("2001-06-01T06", "ns"))
    '2001-06-01 06:00'
    """
    stamp: Any = pd.Timestamp(date) if isinstance(date, np.datetime64) else date
    return stamp.strftime("%Y-%m-%d %H:%M")
