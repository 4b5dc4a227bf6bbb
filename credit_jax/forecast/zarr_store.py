"""One Zarr store of all forecasts, as WeatherBench reads it.

Dims are time (start), number (of ensembles), prediction_timedelta, level, latitude and
longitude. The store is first created without values; then every forecast writes its
part, one lead time after the other, with TensorStore, which takes a tenth of the
processor time of zarr-python for small fields. A chunk is the whole globe at one lead
time: all levels if they have at most MANY_LEVELS bytes, otherwise one level. In Zarr v3
the levels of a lead time are always in one file (a shard).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import cftime
import numpy as np
import pandas as pd
import tensorstore
import zarr

from credit_jax.config.inference import OutputConfig
from credit_jax.data.calendars import STANDARD, as_dates
from credit_jax.data.schedule import ForecastSchedule, Task
from credit_jax.evaluation.opening import STORE
from credit_jax.forecast.delivery import ForecastStore, HostFields
from credit_jax.forecast.netcdf import COORDINATES, UNITS
from credit_jax.forecast.outputs import Outputs
from credit_jax.io.atomic import new_folder
from credit_jax.named_fields.units import DEGREES
from credit_jax.named_fields.variables import Variable

MANY_LEVELS = 8 * 2**20
TIME, MEMBER, LEAD = "time", "number", "prediction_timedelta"
_COORDINATES: dict[str, dict[str, Any]] = {
    TIME: {
        "standard_name": "forecast_reference_time",
        "long_name": "start of forecast",
    },
    LEAD: {"standard_name": "forecast_period", "long_name": "time since start"},
    MEMBER: {"standard_name": "realization", "long_name": "ensemble member"},
    "level": {"long_name": "level", "axis": "Z"},
    "pressure": {"standard_name": "air_pressure", "units": "hPa", "axis": "Z"},
    "latitude": {**DEGREES["latitude"], "axis": "Y"},
    "longitude": {**DEGREES["longitude"], "axis": "X"},
}


@dataclass(frozen=True)
class ZarrStore(ForecastStore):
    """A Zarr store of forecasts."""

    folder: Path  # folder in which the store is created, as `forecast.zarr`
    outputs: Outputs
    schedule: ForecastSchedule
    # Attributes of the whole store.
    attributes: Mapping[str, Any] = field(default_factory=dict)
    zarr_format: int = 3  # 3 or 2
    # Encoding of the variables; one with `zlib: false` is not compressed.
    config: OutputConfig = field(default_factory=OutputConfig)
    first_step = 0

    @property
    def path(self) -> Path:
        return self.folder / STORE

    def create(self) -> None:
        """Creates the store without values, unless it exists."""
        if self.path.exists():
            return
        try:
            with new_folder(self.path) as partial, warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Consolidated metadata")
                self.layout(str(partial))
                form: Any = self.zarr_format
                zarr.consolidate_metadata(str(partial), zarr_format=form)
        except OSError:
            # Another process of the same campaign may have been first.
            if not self.path.exists():
                raise

    def layout(self, location: Any) -> zarr.Group:
        """Creates a group with the coordinates, and variables without values."""
        form: Any = self.zarr_format
        attributes = {"Conventions": "CF-1.11", **self.attributes}
        options: dict[str, Any] = {"zarr_format": form, "attributes": attributes}
        group = zarr.open_group(location, mode="w", **options)
        for name, (values, attributes) in self.coordinates().items():
            dims = self.outputs.space if values.ndim == 2 else (name,)
            # Readers of Zarr v2 take the fill value for a missing one, which a
            # coordinate does not have: so it has no fill value there, and all chunks
            # are written.
            array = group.create_array(
                name,
                shape=values.shape,
                chunks=values.shape,
                dtype=values.dtype,
                fill_value=None if self.zarr_format == 2 else 0,
                config={"write_empty_chunks": True},
                **self._named(dims, attributes),
            )
            array[...] = values
        for variable in self.outputs.variables:
            self._variable(group, variable)
        return group

    @cached_property
    def leads(self) -> tuple[int, ...]:
        """The steps that are in the store, the initial state included."""
        return (0, *self.schedule.written)

    def dims(self, variable: Variable) -> tuple[str, ...]:
        members = (MEMBER,) if self.schedule.num_members > 1 else ()
        levels = () if variable.levels is None else (variable.level_dim,)
        return (TIME, *members, LEAD, *levels, *self.outputs.space)

    def write(self, task: Task, step: int, fields: HostFields) -> None:
        """Writes all variables of a lead time of a forecast; missing ones stay NaN."""
        members = (task.member,) if self.schedule.num_members > 1 else ()
        index = (task.start, *members, self.leads.index(step))
        levels, writes = self.outputs.levels(), []
        for variable in self.outputs.variables:
            if variable.key not in fields:
                continue
            values = fields[variable.key]
            if variable.levels is None:
                values = values[0]
            else:
                full = levels[variable.level_dim].tolist()
                if full != variable.levels.tolist():
                    rows = [full.index(level) for level in variable.levels.tolist()]
                    padded = np.full((len(full), *values.shape[1:]), np.nan, np.float32)
                    padded[rows] = values
                    values = padded
            # Nothing changes the fields of a step, which are not copied then.
            write = self._arrays[variable.name][index].write
            writes.append(write(values, can_reference_source_data_indefinitely=True))
        for write in writes:
            write.result()

    @cached_property
    def _arrays(self) -> dict[str, Any]:
        """The arrays of the variables, open for writing."""
        arrays = {}
        for name in (variable.name for variable in self.outputs.variables):
            spec = {
                "driver": "zarr3" if self.zarr_format == 3 else "zarr",
                "kvstore": {"driver": "file", "path": str(self.path / name)},
                # A chunk is renamed when it is complete; the disk has it when it likes.
                # No process writes into a chunk of another one: file systems without
                # locks will do.
                "context": {
                    "file_io_sync": False,
                    "file_io_locking": {"mode": "none"},
                },
            }
            arrays[name] = tensorstore.open(spec, write=True, open=True).result()
        return arrays

    def coordinates(self) -> dict[str, tuple[np.ndarray, dict[str, Any]]]:
        """Values and attributes of every coordinate."""
        calendar = "standard"
        if self.outputs.calendar != STANDARD:
            calendar = self.outputs.calendar
        dates = as_dates(self.schedule.starts, self.outputs.calendar)
        # Since 1970 in the calendar of the dates themselves.
        seconds = [
            date.value // 10**9
            if isinstance(date, pd.Timestamp)
            else int(cftime.date2num(date, UNITS, calendar=date.calendar))
            for date in dates
        ]
        time = {**_COORDINATES[TIME], "units": UNITS, "calendar": calendar}
        # In hours, or in seconds if they are not whole hours: the values are integers.
        leads = [self.schedule.lead(step) for step in self.leads]
        hour: Any = pd.Timedelta("1h")
        values, units = [lead // hour for lead in leads], "hours"
        if any(lead % hour != pd.Timedelta(0) for lead in leads):
            values, units = [int(lead.total_seconds()) for lead in leads], "seconds"
        lead = {**_COORDINATES[LEAD], "units": units, "dtype": "timedelta64[ns]"}
        coordinates = {
            TIME: (np.array(seconds, np.int64), time),
            LEAD: (np.array(values, np.int64), lead),
        }
        if self.schedule.num_members > 1:
            members = np.arange(self.schedule.num_members)
            coordinates[MEMBER] = (members, _COORDINATES[MEMBER])
        for name, levels in self.outputs.levels().items():
            attributes = _COORDINATES.get(name, _COORDINATES["level"])
            coordinates[name] = (
                levels,
                attributes | self.outputs.attributes_of_levels(name),
            )
        for name in ("latitude", "longitude"):
            coordinates[name] = (getattr(self.outputs, name), _COORDINATES[name])
        return coordinates

    def _variable(self, group: Any, variable: Variable) -> None:
        sizes = {name: len(values) for name, (values, _) in self.coordinates().items()}
        space, dims = self.outputs.space, self.dims(variable)
        full = len(self.outputs.latitude), self.outputs.longitude.shape[-1]
        sizes |= dict(zip(space, full, strict=True))
        shape = tuple(sizes[dim] for dim in dims)
        full = (*space, variable.level_dim)
        together = tuple(sizes[dim] if dim in full else 1 for dim in dims)
        chunks = tuple(sizes[dim] if dim in space else 1 for dim in dims)
        if 4 * math.prod(together) <= MANY_LEVELS:
            chunks = together
        sharded = self.zarr_format == 3 and together != chunks
        encoding = self.config.encoding_of(variable.name)
        attributes = self.outputs.attributes_of(variable)
        attributes.pop("_FillValue", None)
        if self.outputs.curvilinear:
            attributes["coordinates"] = COORDINATES
        group.create_array(
            variable.name,
            shape=shape,
            chunks=chunks,
            shards=together if sharded else None,
            dtype="float32",
            fill_value=float("nan"),
            compressors=None if encoding.get("zlib") is False else "auto",
            **self._named(dims, attributes),
        )

    def _named(
        self, dims: tuple[str, ...], attributes: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Arguments for dim names and attributes, by the version of Zarr."""
        if self.zarr_format == 2:
            return {"attributes": {**attributes, "_ARRAY_DIMENSIONS": list(dims)}}
        return {"attributes": dict(attributes), "dimension_names": dims}
