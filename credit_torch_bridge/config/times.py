"""Converts years, date ranges and file names: gen1 has yearly files, gen2 ranges."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from glob import glob
from typing import Any

import pandas as pd

_CODE = re.compile(r"%[a-zA-Z]")
_YEAR = "%Y"


def year_ranges(years: Sequence[int], hours: int) -> list[list[str]]:
    """The first and last time of each year, as gen2's `date_ranges`.

    gen1 has one file a year, and no sample spans two files; in gen2 no sample spans
    two ranges.

    Args:
        years: first year, and the year after the last, as gen1's `train_years`.
        hours: time step in hours, counted from the start of each year.

    >>> year_ranges([1999, 2001], 6)[0]
    ['1999-01-01 00:00:00', '1999-12-31 18:00:00']
    """
    step: Any = pd.Timedelta(hours=hours)
    ranges = []
    for year in range(*years):
        first: Any = pd.Timestamp(year=year, month=1, day=1)
        after: Any = pd.Timestamp(year=year + 1, month=1, day=1)
        last = first + (after - first - pd.Timedelta(seconds=1)) // step * step
        ranges.append([str(first), str(last)])
    return ranges


def template_of(pattern: str) -> tuple[str, str]:
    """Converts gen1's wildcard path to gen2's template, with a note ("" if none).

    `????` is the year. For a `*` the position of the year is determined from the names
    of existing files. Without files the year is assumed to come first; if that is
    wrong, opening the files raises an error.

    >>> template_of("era5_????_*.zarr")
    ('era5_%Y_*.zarr', '')
    """
    if _CODE.search(pattern) or not re.search(r"[*?\[]", pattern):
        return pattern, ""
    if pattern.count("????") == 1:
        return pattern.replace("????", _YEAR), ""
    if pattern.count("*") != 1:
        return pattern, "say with %Y where the year stands in the names of the files"
    # The text before the year in the `*` of a pattern, from the names of the files.
    head, tail = (len(part) for part in os.path.expandvars(pattern).split("*"))
    endings = set()
    for path in glob(os.path.expandvars(pattern)):
        match = re.match(r"(\D*)\d{4}(?!\d)|(\D*)\d{6,}", path[head : len(path) - tail])
        endings.add(None if match is None else match[1] or match[2] or "")
    previous = endings.pop() if len(endings) == 1 else None
    if previous is not None:
        return pattern.replace("*", f"{previous}{_YEAR}*"), ""
    return (
        pattern.replace("*", f"{_YEAR}*"),
        "the year is taken to be the first thing that * stands for; correct it if not",
    )
