"""Forecasts in files, of whatever layout, read one lead time at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.data.calendars import shift_all
from credit_jax.evaluation.grid_file import GridFile
from credit_jax.named_fields.variables import LevelSelection


@runtime_checkable
class ForecastFiles(Protocol):
    """Forecasts, read one lead time at a time."""

    @property
    def where(self) -> str:
        """The store or folder."""
        ...

    @property
    def starts(self) -> np.ndarray:
        """(start,) labels of the start dates, datetime64[ns]."""
        ...

    @property
    def leads(self) -> np.ndarray:
        """(lead,) lead times above 0, timedelta64[ns]."""
        ...

    @property
    def calendar(self) -> str:
        """Calendar of the valid times."""
        ...

    @property
    def num_members(self) -> int:
        """Members of each forecast; 1 without an ensemble."""
        ...

    @property
    def grid(self) -> GridFile:
        """A file with all variables and the grid."""
        ...

    def read(
        self, start: int, lead: int, selection: LevelSelection
    ) -> Float[np.ndarray, "member channel lat lon"]:
        """All members of a forecast at a lead time, float32."""
        ...


def valid_time(files: ForecastFiles, start: int, lead: int) -> np.datetime64:
    """The time of a forecast at a lead time."""
    step: Any = pd.Timedelta(files.leads[lead])
    return shift_all(files.starts[start : start + 1], step, files.calendar)[0]


def valid_times(files: ForecastFiles) -> np.ndarray:
    """All times of all forecasts and their start dates, in order."""
    steps: list[Any] = [pd.Timedelta(lead) for lead in files.leads]
    times = [shift_all(files.starts, step, files.calendar) for step in steps]
    return np.unique(np.concatenate([files.starts, *times]))


def stacked(
    file: GridFile,
    places: Mapping[str, int],
    selection: LevelSelection,
    member: str | None,
) -> Float[np.ndarray, "member channel lat lon"]:
    """Variables concatenated along the channel dim, with a member dim."""
    fields = []
    for name, levels in selection.items():
        if name not in file.dataset:
            raise ValueError(f"{file.where} lacks the variable {name}")
        field = file.read(name, places, levels)
        if member is None:
            field = field[None]
        fields.append(field if field.ndim == 4 else field[:, None])
    return np.concatenate(fields, axis=1)
