"""CREDIT's NetCDF files of forecasts.

The folder `FOLDER/YYYYMMDD_HHMMZ/` of each start date contains one file per step
(`YYYY-MM-DD_THHMMZ.nc`, of the valid time), or per day, month or year of valid times
(`YYYY-MM-DD.nc`, `YYYY-MM.nc`, `YYYY.nc`), or `full.nc`. Members of an ensemble have
folders `member_NNN` in it. The initial state is not written.

Differs from CREDIT: a file appears when it is complete; the last steps are written also
if `output_interval` leaves out the very last one, where CREDIT drops them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from credit_jax.config.inference import OutputConfig
from credit_jax.data.calendars import as_dates
from credit_jax.data.schedule import ForecastSchedule, Task
from credit_jax.forecast.delivery import ForecastStore, HostFields, TaskWriter, WriteJob
from credit_jax.forecast.outputs import Outputs
from credit_jax.io.atomic import new_file
from credit_jax.io.errors import errors_of
from credit_jax.io.netcdf import NetcdfSeries

UNITS = "seconds since 1970-01-01"
# Attribute of variables on curvilinear grids.
COORDINATES = "latitude longitude"
FILL = "_FillValue"
_FORMATS = {"day": "%Y-%m-%d", "month": "%Y-%m", "year": "%Y"}


@dataclass(frozen=True)
class NetcdfStore(ForecastStore):
    """The folder of the files."""

    folder: Path  # folder of all start dates
    outputs: Outputs
    schedule: ForecastSchedule
    config: OutputConfig  # grouping and encoding

    def check(self) -> None:
        """Checks the encoding of the variables."""
        rows, columns = len(self.outputs.latitude), self.outputs.longitude.shape[-1]
        step = {}
        for variable in self.outputs.variables:
            depth = 1 if variable.levels is None else len(variable.levels)
            step[variable.key] = np.zeros((depth, rows, columns), np.float32)
        first = [self.schedule.valid_time(0, self.schedule.written[0])]
        with errors_of("inference.output.encoding"):
            self._files.check(to_dataset(self.outputs, first, [step]))

    def writer(self, task: Task) -> NetcdfWriter:
        return NetcdfWriter(self, task)

    def path(self, task: Task, time: np.datetime64) -> Path:
        start: Any = pd.Timestamp(self.schedule.starts[task.start])
        folder = self.folder / start.strftime("%Y%m%d_%H%MZ")
        if self.schedule.num_members > 1:
            folder /= f"member_{task.member:03d}"
        return folder / f"{self.period(time)}.nc"

    def period(self, time: np.datetime64) -> str:
        """Name of the file of a valid time, without the suffix."""
        stamp: Any = pd.Timestamp(time)
        if self.config.group_by is None:
            return stamp.strftime("%Y-%m-%d_T%H%MZ")
        if self.config.group_by == "full":
            return "full"
        return stamp.strftime(_FORMATS[self.config.group_by])

    def write(
        self, task: Task, times: list[np.datetime64], steps: list[HostFields]
    ) -> None:
        """Writes the file of some steps of a forecast."""
        dataset = to_dataset(
            self.outputs,
            times,
            steps,
            task.member if self.schedule.num_members > 1 else None,
        )
        with new_file(self.path(task, times[0])) as partial:
            self._files.write(dataset, partial)

    @cached_property
    def _files(self) -> NetcdfSeries:
        names = [variable.name for variable in self.outputs.variables]
        return NetcdfSeries({name: self.config.encoding_of(name) for name in names})


@dataclass
class NetcdfWriter(TaskWriter):
    """Collects the steps of one forecast into files."""

    _times: list[np.datetime64] = field(default_factory=list)
    _steps: list[HostFields] = field(default_factory=list)

    def add(self, step: int, fields: HostFields) -> Iterator[WriteJob]:
        """Adds a step, in order; yields jobs that write the files that are complete."""
        time = self.store.schedule.valid_time(self.task.start, step)
        if self._times and self.store.period(time) != self.store.period(self._times[0]):
            yield from self.finish()
        self._times.append(time)
        self._steps.append(fields)
        if self.store.config.group_by is None:
            yield from self.finish()

    def finish(self) -> Iterator[WriteJob]:
        """Yields the job that writes the remaining steps."""
        if self._times:
            times, steps = self._times, self._steps
            self._times, self._steps = [], []
            yield lambda: self.store.write(self.task, times, steps)


def to_dataset(
    outputs: Outputs,
    times: list[np.datetime64],
    steps: list[HostFields],  # key -> (level, lat, lon) at each time
    member: int | None = None,
) -> xr.Dataset:
    """Returns steps of a forecast in CREDIT's layout, with attributes and encoding."""
    space, levels = outputs.space, dict[str, np.ndarray]()
    # Values of each level coordinate; of unequal ones all, sorted, as in xarray.
    deep = [(v.level_dim, v.levels) for v in outputs.variables if v.levels is not None]
    for dim, of_variable in deep:
        other = levels.setdefault(dim, of_variable)
        if not np.array_equal(other, of_variable):
            levels[dim] = np.union1d(other, of_variable)
    arrays: dict[str, xr.Variable] = {}
    for variable in outputs.variables:
        fields, dims = [step[variable.key] for step in steps], list(space)
        # One step is not copied.
        values = np.stack(fields) if len(fields) > 1 else fields[0][None]
        if variable.levels is None:
            values = values[:, 0]
        else:
            full = levels[variable.level_dim]
            if not np.array_equal(variable.levels, full):
                # Missing at the others.
                shape = (len(values), len(full), *values.shape[2:])
                filled = np.full(shape, np.nan, values.dtype)
                filled[:, np.searchsorted(full, variable.levels)] = values
                values = filled
            dims = [variable.level_dim, *space]
        attributes = dict(outputs.attributes.get(variable.name, {}))
        if outputs.curvilinear:
            attributes = {"coordinates": COORDINATES, **attributes}
        encoding = {k: attributes.pop(k) for k in (FILL,) if k in attributes}
        arrays[variable.name] = xr.Variable(
            ["time", *dims], values, attributes, encoding, fastpath=True
        )
    lines = {"latitude": outputs.latitude, "longitude": outputs.longitude}
    coords: dict[str, Any] = {
        "time": as_dates(np.array(times), outputs.calendar),
        **levels,
        **{k: (space if outputs.curvilinear else k, v) for k, v in lines.items()},
        **({} if member is None else {"number": member}),
    }
    dataset = xr.Dataset(arrays, coords, {"Conventions": "CF-1.11"})
    units = outputs.attributes.get("time", {}).get("units", UNITS)
    dataset["time"].encoding.update(
        {"units": units, "calendar": outputs.calendar, "dtype": "int64"}
    )
    return dataset
