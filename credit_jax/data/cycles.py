"""The year of a source with `temporal_mode: cyclic`."""

from __future__ import annotations

import pandas as pd

from credit_jax.config.data import DataConfig
from credit_jax.config.dates import date_label
from credit_jax.config.sources.source import SourceConfig

# First and last time of a file, defaults for the dates and the year of a cyclic source.
Coverage = tuple[pd.Timestamp, pd.Timestamp]


def cycle_of(
    data: DataConfig, source: SourceConfig, coverage: Coverage | None
) -> tuple[tuple[pd.Timestamp, pd.Timestamp], ...]:
    """First and last time of a cyclic source: from its keys, `data`, or its file.

    Raises:
        ValueError: there are no dates, or none in `cycle_year`.

    Differs from CREDIT: with no date in `cycle_year` it fails as it reads a file, or
    takes one time for all.
    """
    first = source.start_datetime or data.start_datetime
    last = source.end_datetime or data.end_datetime
    if not (first and last) and coverage is None:
        raise ValueError(
            "temporal_mode: cyclic needs start_datetime and end_datetime of its year"
        )
    begin, end = coverage or (None, None)
    start, stop = date_label(first or begin), date_label(last or end)
    year = source.cycle_year
    if year is not None and not start.year <= year <= stop.year:
        raise ValueError(
            f"temporal_mode: cyclic takes its times from {start} to {stop}, but "
            f"cycle_year is {year}; give the source start_datetime and end_datetime of "
            "its own, in that year"
        )
    return ((start, stop),)


def cycle_year_of(source: SourceConfig, coverage: Coverage | None) -> int:
    """The year of a cyclic source: from its key, or else its file.

    Raises:
        ValueError: neither has one year.
    """
    if source.cycle_year is not None:
        return source.cycle_year
    years = sorted({time.year for time in coverage or ()})
    if len(years) != 1:
        raise ValueError(
            f"temporal_mode: cyclic needs cycle_year: its first file has the years "
            f"{', '.join(map(str, years)) or 'unknown'}, and one is needed"
        )
    return years[0]
