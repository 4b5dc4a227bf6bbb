"""Formatting of lead times, channels and numbers in figures and tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from credit_jax.config.messages import typeset_units

DAY = np.timedelta64(1, "D")


def lead_text(lead: Any) -> str:
    """Formats a lead time.

    >>> lead_text(np.timedelta64(30, "h"))
    '1 d 6 h'
    >>> lead_text(np.timedelta64(90, "m"))
    '1 h 30 min'
    """
    length: Any = pd.Timedelta(lead)
    parts = length.components
    named = [(parts.days, "d"), (parts.hours, "h"), (parts.minutes, "min")]
    return " ".join(f"{count} {unit}" for count, unit in named if count) or "0 h"


def days_of(leads: Any) -> np.ndarray:
    """Lead times in days."""
    return np.asarray(leads) / DAY


def level_text(level: float, units: str = "") -> str:
    """Formats a level; units are "hPa", "sigma" or others, "" for a number.

    >>> level_text(500.0, "hPa"), level_text(0.25, "sigma"), level_text(120.0)
    ('500 hPa', 'sigma 0.25', 'level 120')
    """
    if units == "sigma":
        return f"sigma {level:g}"
    return f"{level:g} {units}" if units else f"level {level:g}"


def field_text(variable: str, level: float | None, units: str = "") -> str:
    """Names a variable and its level: "T at 500 hPa"; without a level the variable."""
    if level is None or math.isnan(level):
        return variable
    return f"{variable} at {level_text(level, units)}"


def channel_text(scores: xr.Dataset, channel: str) -> str:
    """Names a channel of scores by its variable and level, such as "T at 500 hPa"."""
    index = scores.get_index("channel").get_loc(channel)
    units = ""
    if "level_units" in scores.coords:
        units = str(scores["level_units"].values[index])
    variable, level = scores["variable"].values[index], scores["level"].values[index]
    return field_text(str(variable), float(level), units)


# Names of regions that are not their keys with blanks.
_REGIONS = {
    "global": "globe",
    "ausnz": "Australia and New Zealand",
    "extra-tropics": "extratropics",
    "arctic": "Arctic",
    "antarctic": "Antarctic",
}


def region_text(region: str) -> str:
    """Names a region.

    >>> region_text("northern-hemisphere"), region_text("east-asia")
    ('northern hemisphere', 'East Asia')
    """
    if region in _REGIONS:
        return _REGIONS[region]
    text = region.replace("-", " ")
    return text if text.endswith(("hemisphere", "tropics")) else text.title()


def with_units(text: str, units: str) -> str:
    """Text with units in brackets, if there are any; "1" is none."""
    return f"{text} ({units})" if units not in ("", "1") else text


def channel_units(scores: xr.Dataset, channel: str, power: int = 1) -> str:
    """Units of a channel to a power, as they are set; empty if unknown."""
    if "units" not in scores.coords:
        return ""
    index = scores.get_index("channel").get_loc(channel)
    return typeset_units(str(scores["units"].values[index]), power)


def number_text(value: float) -> str:
    """Formats a number with three significant digits; a dash if it is not finite.

    >>> number_text(0.0012345), number_text(53211.7), number_text(float("nan"))
    ('0.00123', '53200', '–')
    """
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    text = f"{value:.2e}"
    size = int(text.partition("e")[2])
    if -4 <= size <= 5:
        return f"{float(text):.{max(0, 2 - size)}f}"
    return text
