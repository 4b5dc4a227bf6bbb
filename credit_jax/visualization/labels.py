"""Formatting of lead times, channels and numbers in figures and tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

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


def channel_units(scores: xr.Dataset, channel: str) -> str:
    """Units of a channel; empty if unknown."""
    if "units" not in scores.coords:
        return ""
    return str(scores["units"].sel(channel=channel).item())


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
