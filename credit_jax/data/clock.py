"""Start times of samples, and their input and target times."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from credit_jax.config.data import DataConfig
from credit_jax.config.dates import date_label
from credit_jax.config.sources.source import SourceConfig
from credit_jax.data import calendars
from credit_jax.data.calendars import STANDARD, shift, shift_all

# First and last time of a file, defaults for the dates and the year of a cyclic source.
Coverage = tuple[pd.Timestamp, pd.Timestamp]


@dataclasses.dataclass(frozen=True)
class SourceClock:
    """Dates and steps of one source, for starts of the clock that all sources share."""

    # (first, last) time that may be read, one pair per range of dates.
    ranges: tuple[tuple[pd.Timestamp, pd.Timestamp], ...]
    step: pd.Timedelta  # time between input and target, and between two input times
    history_len: int  # number of input times of a sample
    forecast_len: int  # number of target times of a sample
    calendar: str  # calendar of the times of the source
    # "exact": start + k step, in the calendar of the master clock; "persist": last + k
    # step, where last is the last time of this source at or before start; "cyclic":
    # start + k step, each moved into `cycle_year` and replaced by the last time of this
    # source at or before it (before the first one of the year, the last one of the
    # year); "next": next + k step, k = ..., -1, 0, where next is the first multiple of
    # `step` in a day after the target, which is `master_step` after start.
    mode: str = "exact"  # "exact", "persist", "cyclic" or "next"
    cycle_year: int | None = None  # the year of a cyclic source
    master: str = STANDARD  # calendar of the starts
    # Time between a start and its target; None is `step`.
    master_step: pd.Timedelta | None = None

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """Times, as datetime64[ns], whose whole window is in a date range."""
        parts = []
        for first, last in self.ranges:
            start = shift(first, (self.history_len - 1) * self.step, self.calendar)
            end = shift(last, -self.forecast_len * self.step, self.calendar)
            if end < start and len(self.ranges) > 1:
                raise ValueError(
                    f"date_ranges: {first} to {last} is too short: history_len "
                    f"{self.history_len} + forecast_len {self.forecast_len} times, "
                    f"{self.step} apart, are needed"
                )
            parts.append(calendars.time_range(start, end, self.step, self.calendar))
        return np.concatenate(parts)

    def input_times(self, starts: np.datetime64 | np.ndarray) -> np.ndarray:
        """(..., history_len) input times of each start, datetime64[ns]."""
        return self._at(starts, range(1 - self.history_len, 1))

    def target_times(self, starts: np.datetime64 | np.ndarray) -> np.ndarray:
        """(..., 1) target time one step after each start, datetime64[ns]."""
        return self._at(starts, range(1, 2))

    def keep(self, starts: np.ndarray) -> np.ndarray:
        """Selects the starts of the master clock for which this source has fields."""
        if self.mode == "next":
            # (starts, times) input times of all steps of a forecast.
            step = self.master_step or self.step
            moved = [
                shift_all(starts, k * step, self.master)
                for k in range(self.forecast_len)
            ]
            times = np.concatenate(
                [self.input_times(step_starts) for step_starts in moved], axis=-1
            )
            inside = [(times >= first) & (times <= last) for first, last in self.ranges]
            return starts[np.any(inside, axis=0).all(axis=-1)]
        source_starts = self.starts
        if self.mode == "cyclic":
            return starts
        if self.mode == "exact" or not source_starts.size:
            return starts[np.isin(starts, source_starts)]
        last = shift(source_starts[-1], self.step, self.master).to_datetime64()
        return starts[(starts >= source_starts[0]) & (starts <= last)]

    def _at(self, starts: np.datetime64 | np.ndarray, steps: range) -> np.ndarray:
        base = np.asarray(starts, dtype="datetime64[ns]")
        calendar = self.master
        if self.mode == "next":
            # The first multiple of `step` after the target of each start.
            target = shift_all(base, self.master_step or self.step, self.master)
            day = target.astype("datetime64[D]").astype("datetime64[ns]")
            step = self.step.to_timedelta64()
            passed = np.asarray(day + (target - day) // step * step)
            base = shift_all(passed, self.step, self.master)
        if self.mode == "persist":
            base, calendar = self._latest(base), self.calendar
        columns = [shift_all(base, k * self.step, calendar) for k in steps]
        times = np.stack(columns, axis=-1)
        if self.mode == "cyclic":
            assert self.cycle_year is not None
            times = calendars.to_cycle_year(times, self.cycle_year, self.calendar)
            return self._latest(times)
        return times

    def _latest(self, times: np.ndarray) -> np.ndarray:
        """The last start of this source at or before each time, else its last start."""
        source_starts = self.starts
        position = np.searchsorted(source_starts, times, side="right") - 1
        if self.mode == "persist" and (position < 0).any():
            early = times[position < 0].min()
            raise ValueError(
                f"no time at or before {str(early)[:19]} to persist: the source begins "
                f"at {str(source_starts[0])[:19]}"
            )
        return np.asarray(source_starts[position])


def source_clock(
    data: DataConfig,
    source: SourceConfig,
    calendar: str,
    coverage: Coverage | None = None,
) -> SourceClock:
    """Builds the clock of a source from its own keys, or else those of `data`."""
    forecast_len = source.forecast_len
    year, ranges = None, None
    if source.temporal_mode == "cyclic":
        first = source.start_datetime or data.start_datetime
        last = source.end_datetime or data.end_datetime
        if not (first and last) and coverage is None:
            raise ValueError(
                "temporal_mode: cyclic needs start_datetime and end_datetime of its "
                "year"
            )
        # Dates of its first file (`coverage`). Differs from CREDIT: with no date in
        # `cycle_year` of a cyclic source it fails as it reads a file, or takes one time
        # for all.
        begin, end = coverage or (None, None)
        start, stop = date_label(first or begin), date_label(last or end)
        year = source.cycle_year
        if year is not None and not start.year <= year <= stop.year:
            raise ValueError(
                f"temporal_mode: cyclic takes its times from {start} to {stop}, but "
                f"cycle_year is {year}; give the source start_datetime and "
                "end_datetime of its own, in that year"
            )
        years = sorted({time.year for time in coverage or ()})
        if year is None and len(years) != 1:
            raise ValueError(
                "temporal_mode: cyclic needs cycle_year: its first file has the years "
                f"{', '.join(map(str, years)) or 'unknown'}, and one is needed"
            )
        year, ranges = year or years[0], ((start, stop),)
    clock = SourceClock(
        ranges=ranges or _ranges(data, source),
        step=source.time_step or data.time_step,
        history_len=source.history_len or data.history_len,
        forecast_len=data.forecast_len if forecast_len is None else forecast_len,
        calendar=calendar,
        mode=source.temporal_mode,
        master_step=data.time_step,
        cycle_year=year,
    )
    if source.temporal_mode != "exact" and not clock.starts.size:
        raise ValueError(
            f"{_describe('a source', clock)}: no time is left to take its fields from; "
            "widen its start_datetime and end_datetime"
        )
    return clock


def probe_times(data: DataConfig, source: SourceConfig) -> tuple[np.datetime64, ...]:
    """All times that samples may read from a source with one file per time, sorted."""
    clock = source_clock(data, source, source.calendar or STANDARD)
    starts = clock.starts
    steps = range(1 - clock.history_len, clock.forecast_len + 1)
    times = [shift_all(starts, k * clock.step, clock.calendar) for k in steps]
    return tuple(np.unique(np.concatenate(times)))


def common_calendar(data: DataConfig, clocks: Mapping[str, SourceClock]) -> str:
    """Returns the calendar in which the steps of a model are counted."""
    bound = {k: c.calendar for k, c in clocks.items() if c.mode != "cyclic"}
    # Years of a cyclic source are not those of the steps.
    calendar = data.calendar or calendars.most_restrictive(bound.values())
    for name, bound_calendar in bound.items():
        if bound_calendar not in (STANDARD, calendar):
            raise ValueError(
                f"data.source.{name}: has the calendar {bound_calendar}, but "
                f"data.calendar is {calendar}; the start times must be in the calendar "
                "with fewer dates: leave data.calendar out"
            )
    return calendar


def common_starts(
    data: DataConfig, clocks: Mapping[str, SourceClock], calendar: str
) -> np.ndarray:
    """Returns the start times, datetime64[ns], for which every source has fields."""
    master = SourceClock(
        ranges=_ranges(data, data),
        step=data.time_step,
        history_len=data.history_len,
        forecast_len=data.forecast_len,
        calendar=calendar,
        master=calendar,
    )
    starts = master.starts
    for clock in clocks.values():
        starts = clock.keep(starts)
    if not starts.size:
        listed = [_describe("data", master)]
        listed += [_describe(f"data.source.{k}", c) for k, c in clocks.items()]
        raise ValueError("no start time is common to all sources: " + "; ".join(listed))
    return starts


def _ranges(data: Any, source: Any) -> tuple[tuple[pd.Timestamp, pd.Timestamp], ...]:
    """Date ranges of a source: its own, or else those of the data section."""
    if source.date_ranges:
        dates = source.date_ranges
        return tuple(sorted((date_label(a), date_label(b)) for a, b in dates))
    if source.start_datetime or source.end_datetime:
        first = source.start_datetime or data.start_datetime
        last = source.end_datetime or data.end_datetime
        if not (first and last):
            raise ValueError(
                f"a source has start_datetime {first} and end_datetime {last}; beside "
                "date_ranges of the data section it needs both"
            )
        return ((date_label(first), date_label(last)),)
    return _ranges(data, data)


def _describe(name: str, clock: SourceClock) -> str:
    dates = ", ".join(f"{first} to {last}" for first, last in clock.ranges)
    return (
        f"{name}: {dates} every {clock.step}, history_len {clock.history_len}, "
        f"forecast_len {clock.forecast_len}"
    )
