"""Start times of samples, and the input and target times of each."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pandas as pd

from credit_jax.config.data import DataConfig, SourceConfig
from credit_jax.data.calendars import shift, shift_all, time_range


@dataclasses.dataclass(frozen=True)
class SourceClock:
    """Dates and steps of one source.

    Attributes:
        ranges: (first, last) time that may be read, one pair per range of dates.
        step: time between input and target, and between two input times.
        history_len: input times of a sample.
        forecast_len: target times of a sample.
        calendar: "standard" or "noleap".
    """

    ranges: tuple[tuple[pd.Timestamp, pd.Timestamp], ...]
    step: pd.Timedelta
    history_len: int
    forecast_len: int
    calendar: str

    def starts(self) -> np.ndarray:
        """Times t, as datetime64[ns], whose whole window lies in a range.

        first + (history_len - 1) step, ... every step, ... last - forecast_len step.
        """
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
            parts.append(time_range(start, end, self.step, self.calendar))
        return np.concatenate(parts)

    def input_times(self, starts: np.datetime64 | np.ndarray) -> np.ndarray:
        """(..., history_len) times that end at each start, datetime64[ns]."""
        return self._at(starts, range(1 - self.history_len, 1))

    def target_times(self, starts: np.datetime64 | np.ndarray) -> np.ndarray:
        """(..., 1) the time after each start, datetime64[ns]."""
        return self._at(starts, range(1, 2))

    def _at(self, starts: np.datetime64 | np.ndarray, steps: range) -> np.ndarray:
        base = np.asarray(starts, dtype="datetime64[ns]")
        columns = [shift_all(base, k * self.step, self.calendar) for k in steps]
        return np.stack(columns, axis=-1)


def source_clock(data: DataConfig, source: SourceConfig, calendar: str) -> SourceClock:
    """The clock of one source: its own keys where it has them, else those of `data`.

    A source's own start_datetime, end_datetime or date_ranges stand for all dates.
    """

    def key(name: str) -> Any:
        own = getattr(source, name, None)
        return own if own is not None else getattr(data, name, None)

    return SourceClock(
        ranges=_ranges(data, source),
        step=_step(key("timestep")),
        history_len=key("history_len"),
        forecast_len=key("forecast_len"),
        calendar=calendar,
    )


def master_clock(
    data: DataConfig, clocks: dict[str, SourceClock]
) -> tuple[np.ndarray, str]:
    """Start times that every source has, and the calendar they are in.

    Args:
        data: the data section: its own dates and time step make the clock.
        clocks: of each source; only starts that all of them have are kept.

    Returns:
        (samples,) datetime64[ns] and the calendar: noleap if any source is noleap.

    Raises:
        ValueError: if nothing is left, with each source's range.
    """
    noleap = [clock.calendar for clock in clocks.values() if clock.calendar == "noleap"]
    calendar = noleap[0] if noleap else "standard"
    own = SourceClock(
        ranges=_ranges(data, data),
        step=_step(data.timestep),
        history_len=data.history_len,
        forecast_len=data.forecast_len,
        calendar=calendar,
    )
    starts = own.starts()
    for clock in clocks.values():
        starts = starts[np.isin(starts, clock.starts())]
    if not starts.size:
        listed = [_describe("data", own)]
        listed += [_describe(f"data.source.{k}", c) for k, c in clocks.items()]
        raise ValueError("no start time is common to all sources: " + "; ".join(listed))
    return starts, calendar


def _ranges(data: Any, source: Any) -> tuple[tuple[pd.Timestamp, pd.Timestamp], ...]:
    """Date ranges of a source: its own, else those of the data section."""
    if source.date_ranges:
        return _sorted_ranges(source.date_ranges)
    if source.start_datetime or source.end_datetime:
        first = source.start_datetime or data.start_datetime
        last = source.end_datetime or data.end_datetime
        if not (first and last):
            raise ValueError(
                f"a source has start_datetime {first} and end_datetime {last}; beside "
                "date_ranges of the data section it needs both"
            )
        return ((_label(first), _label(last)),)
    return _ranges(data, data)


def _sorted_ranges(given: Any) -> tuple[tuple[pd.Timestamp, pd.Timestamp], ...]:
    ranges = sorted((_label(first), _label(last)) for first, last in given)
    for first, last in ranges:
        if last <= first:
            raise ValueError(f"date_ranges: {first} to {last} ends before it begins")
    for (_, last), (first, _) in itertools.pairwise(ranges):
        if first <= last:
            raise ValueError(
                f"date_ranges: the range that begins at {first} overlaps the one that "
                f"ends at {last}"
            )
    return tuple(ranges)


def _label(date: Any) -> pd.Timestamp:
    """A date as a label without time zone (UTC is what the files have)."""
    stamp: Any = pd.Timestamp(date)
    return stamp.tz_convert(None) if stamp.tz is not None else stamp


def _step(text: str) -> pd.Timedelta:
    step: Any = pd.Timedelta(text)
    return step


def _describe(name: str, clock: SourceClock) -> str:
    dates = ", ".join(f"{first} to {last}" for first, last in clock.ranges)
    return (
        f"{name}: {dates} every {clock.step}, history_len {clock.history_len}, "
        f"forecast_len {clock.forecast_len}"
    )
