"""Forecasts in a Zarr store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.data.calendars import calendar_of, to_labels
from credit_jax.evaluation.forecast_files import stacked
from credit_jax.evaluation.grid_file import GridFile
from credit_jax.evaluation.references import open_dataset
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.variables import LevelSelection

# Names of the dims of start dates, lead times and members.
STARTS = ("time", "init_time")
LEADS = ("prediction_timedelta", "lead_time", "step")
MEMBERS = ("number", "realization", "member", "sample", "ensemble")


@dataclass(frozen=True, eq=False)
class ZarrForecasts:
    """A Zarr store in WeatherBench's layout."""

    grid: GridFile
    time: str  # names of the dims of start dates, lead times and members
    lead: str
    member: str | None  # None without an ensemble

    @property
    def where(self) -> str:
        return self.grid.where

    @property
    def starts(self) -> np.ndarray:
        return to_labels(self.grid.dataset[self.time].values, self.where)

    @property
    def leads(self) -> np.ndarray:
        return self._all_leads[self._positions]

    @property
    def calendar(self) -> str:
        return calendar_of(self.grid.dataset[self.time].values, self.where)

    @property
    def num_members(self) -> int:
        return self.grid.dataset.sizes[self.member] if self.member else 1

    def read(
        self, start: int, lead: int, selection: LevelSelection
    ) -> Float[np.ndarray, "member channel lat lon"]:
        places = {self.time: start, self.lead: int(self._positions[lead])}
        return stacked(self.grid, places, selection, self.member)

    @cached_property
    def _all_leads(self) -> np.ndarray:
        array = self.grid.dataset[self.lead]
        if np.issubdtype(array.dtype, np.timedelta64):
            return array.values.astype("timedelta64[ns]")
        unit: Any = str(array.attrs.get("units", "hours")).lower()
        try:
            # pandas has the names of CF, and another letter for days.
            length = pd.to_timedelta(1, unit="days" if unit == "d" else unit)
        except ValueError:
            raise ValueError(
                f"{self.where}: {self.lead} is in {unit!r}; expected a unit of time, "
                "such as hours: convert it"
            ) from None
        return array.values * length.to_timedelta64().astype("timedelta64[ns]")

    @cached_property
    def _positions(self) -> np.ndarray:
        leads = self._all_leads
        order = np.argsort(leads)
        return order[leads[order] > np.timedelta64(0, "ns")]


def open_zarr(path: str, files: OpenFiles) -> ZarrForecasts:
    """Opens a store without reading fields.

    Raises:
        FileNotFoundError: there is no such path.
        ValueError: it has no start dates or lead times.
    """
    dataset = open_dataset(path, "--forecast", files)

    def named(names: Sequence[str]) -> str | None:
        present = (name for name in names if name in dataset.coords)
        return next(present, next((n for n in names if n in dataset.dims), None))

    time, lead, member = named(STARTS), named(LEADS), named(MEMBERS)
    ones = [name for name in (time, lead) if name and name not in dataset.dims]
    dataset = dataset.expand_dims(ones) if ones else dataset
    member = member if member in dataset.dims else None
    if time is None or lead is None:
        raise ValueError(
            f"--forecast: {path} holds no forecasts: expected the dims "
            f"{' or '.join(STARTS)} and {' or '.join(LEADS)}; it has "
            f"{', '.join(map(str, dataset.dims))}"
        )
    for name in (time, lead):
        values = np.asarray(dataset[name].values)
        unique, counts = np.unique(values, return_counts=True)
        if (counts > 1).any():
            raise ValueError(
                f"--forecast: {path}: {name} has {unique[counts > 1][0]} more than "
                "once; which of the forecasts is meant cannot be known"
            )
    others = (time, *([member] if member else []), lead)
    grid = GridFile(path, dataset, others, (time, lead))
    return ZarrForecasts(grid, time, lead, member)
