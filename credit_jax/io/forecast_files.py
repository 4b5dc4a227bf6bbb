"""Reading forecasts: our stores and folders, CREDIT's folders, WeatherBench's stores.

One Zarr store or NetCDF file has the dims time (start), prediction_timedelta and number
(of ensembles); WeatherBench-X's init_time and lead_time are the same. A folder of
NetCDF files has a folder for each start date, in it those of members, in these files of
valid times, as `inference.netcdf` and CREDIT write them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import cftime
import numpy as np
import pandas as pd
import xarray as xr

from credit_jax.io.open_files import OpenFiles, open_dataset
from credit_jax.io.remote import is_url

STORE = "forecast.zarr"
TIME, MEMBER, LEAD = "time", "number", "prediction_timedelta"
LATITUDE, LONGITUDE = "latitude", "longitude"
_SPACE = (LATITUDE, LONGITUDE, "y", "x")
# Other names of dims and coordinates, where there is none of ours.
_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "init_time": TIME,
        "lead_time": LEAD,
        "step": LEAD,
        "realization": MEMBER,
        "member": MEMBER,
        "lat": LATITUDE,
        "lon": LONGITUDE,
    }
)
_START = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)[_T](\d\d):?(\d\d)?Z?")


def open_forecasts(path: str | Path) -> Forecasts:
    """Forecasts in a store, a file or a folder.

    Args:
        path: a Zarr store or its address, a NetCDF file, the folder of `credit-jax
            forecast`, or CREDIT's folder.

    Raises:
        FileNotFoundError: there is nothing.
        ValueError: what is there are no forecasts.
    """
    text = os.fspath(path)
    if is_url(text):
        return StoreOfForecasts(text)
    place = Path(text)
    if not place.exists():
        raise FileNotFoundError(f"{place} does not exist")
    if (place / STORE).exists():
        return StoreOfForecasts(os.fspath(place / STORE))
    marks = ("zarr.json", ".zgroup", ".zmetadata")
    if place.is_file() or any((place / name).exists() for name in marks):
        return StoreOfForecasts(text)
    found = FolderOfForecasts(place)
    if not found.folders:
        raise ValueError(
            f"{place}: no forecasts: neither {STORE} nor folders of start dates such "
            "as 20010601_0000Z"
        )
    return found


def level_dim(array: xr.DataArray) -> str | None:
    """The dim of levels of a field; None without one."""
    other = (TIME, MEMBER, LEAD, *_SPACE)
    dims = [str(dim) for dim in array.dims if dim not in other]
    return dims[0] if dims else None


def with_our_names(dataset: xr.Dataset) -> xr.Dataset:
    """The data set with the dims and coordinates of this module."""
    there = {*dataset.dims, *dataset.coords}
    names = {k: v for k, v in _NAMES.items() if k in there and v not in there}
    return dataset.rename(names)


@dataclass(frozen=True, eq=False)
class StoreOfForecasts:
    """Forecasts in one Zarr store or NetCDF file.

    Attributes:
        path: of it.
    """

    path: str

    @cached_property
    def dataset(self) -> xr.Dataset:
        """The whole store; no field is read.

        Raises:
            ValueError: it holds no forecasts.
        """
        found = with_our_names(open_dataset(self.path, decode_timedelta=False))
        lost = [name for name in (TIME, LEAD) if name not in found.coords]
        if lost:
            raise ValueError(
                f"{self.path}: no forecasts: no coordinate {', '.join(lost)}; there "
                f"are: {', '.join(map(str, found.coords))}"
            )
        ones = [name for name in (TIME, LEAD) if name not in found.dims]
        return found.expand_dims(ones) if ones else found

    @cached_property
    def starts(self) -> list[Any]:
        """Start dates, datetime64 or of cftime, increasing."""
        return [*self.dataset[TIME].values]

    @cached_property
    def leads(self) -> np.ndarray:
        """(lead,) timedelta64[ns], increasing."""
        lead = self.dataset[LEAD]
        if np.issubdtype(lead.dtype, np.timedelta64):
            return lead.values.astype("timedelta64[ns]")
        units: Any = lead.attrs.get("units", "hours")
        return pd.to_timedelta(lead.values, unit=units).to_numpy("timedelta64[ns]")

    @property
    def members(self) -> int | None:
        """Number of ensemble members; None without an ensemble."""
        return self.dataset.sizes.get(MEMBER)

    @property
    def layout(self) -> xr.Dataset:
        """The variables of one lead time, not read: dims, coordinates, attributes."""
        fields = [k for k, v in self.dataset.items() if {TIME, LEAD} <= {*v.dims}]
        first: Any = {TIME: 0, LEAD: 0, MEMBER: 0}
        return self.dataset[fields].isel(first, missing_dims="ignore", drop=True)

    def read(
        self, start: int, lead: int, names: Sequence[str], **levels: Any
    ) -> xr.Dataset:
        """Fields of one lead time of one forecast, all members, in memory.

        Args:
            start: number of the start date.
            lead: number of the lead time.
            names: of the variables.
            **levels: positions in dims of levels, as of `Dataset.isel`.

        Returns:
            Dims (number, level, latitude, longitude), as far as there are any.

        Raises:
            ValueError: that lead time is not there.
        """
        place = {TIME: start, LEAD: lead, **levels}
        found = self.dataset[[*names]].isel(place, missing_dims="ignore", drop=True)
        dims = (MEMBER, ..., *(dim for dim in _SPACE if dim in found.dims))
        return found.transpose(*dims, missing_dims="ignore").load()


@dataclass(frozen=True, eq=False)
class FolderOfForecasts:
    """Forecasts in NetCDF files of valid times, in folders of start dates.

    Attributes:
        path: of the folder.
    """

    path: Path

    @cached_property
    def folders(self) -> list[Path]:
        """That of each start date."""
        own = [p for p in self.path.iterdir() if p.is_dir() and _START.match(p.name)]
        return sorted(own, key=lambda p: _date_of(p.name, "standard"))

    @cached_property
    def starts(self) -> list[Any]:
        """As of `StoreOfForecasts`."""
        calendar = self._calendar
        dates = [_date_of(folder.name, calendar) for folder in self.folders]
        if calendar not in ("standard", "proleptic_gregorian"):
            return dates
        return [np.datetime64(date.isoformat(), "ns") for date in dates]

    @cached_property
    def leads(self) -> np.ndarray:
        """As of `StoreOfForecasts`; those of the first start date."""
        leads = [*self._places(0)[0]]
        return np.array([np.timedelta64(lead, "ns") for lead in leads])

    @property
    def members(self) -> int | None:
        """As of `StoreOfForecasts`."""
        return self._count or None

    @cached_property
    def layout(self) -> xr.Dataset:
        """As of `StoreOfForecasts`."""
        return self._first.isel({TIME: 0}, drop=True)

    def read(
        self, start: int, lead: int, names: Sequence[str], **levels: Any
    ) -> xr.Dataset:
        """As of `StoreOfForecasts`."""
        length = self.leads[lead].astype("timedelta64[us]").item()
        parts: list[xr.Dataset] = []
        for places in self._places(start):
            if length not in places:
                raise ValueError(
                    f"{self.folders[start]} has no lead time of {length}; it is "
                    "incomplete"
                )
            path, number = places[length]
            found = with_our_names(self._files.dataset(path))[[*names]]
            place = {TIME: number, **levels}
            found = found.isel(place, missing_dims="ignore", drop=True)
            parts.append(found.drop_vars(MEMBER, errors="ignore").load())
        if not self._count:
            return parts[0]
        return xr.concat(parts, dim=MEMBER, coords="minimal", compat="override")

    @cached_property
    def _files(self) -> OpenFiles:
        return OpenFiles()

    @cached_property
    def _first(self) -> xr.Dataset:
        """The first file."""
        path = next(iter(self._paths(0)[0]), None)
        if path is None:
            raise ValueError(f"{self.folders[0]}: no NetCDF files")
        return with_our_names(self._files.dataset(path))

    @cached_property
    def _calendar(self) -> str:
        return str(self._first[TIME].dt.calendar)

    @cached_property
    def _count(self) -> int:
        """Number of folders of members."""
        return len([*self.folders[0].glob("member_*")])

    def _paths(self, start: int) -> list[list[Path]]:
        """The files of each member."""
        folder = self.folders[start]
        places = sorted(folder.glob("member_*")) or [folder]
        return [sorted(place.glob("*.nc")) for place in places]

    def _places(self, start: int) -> list[dict[timedelta, tuple[Path, int]]]:
        """Of each member: lead time -> file, and the place in it."""
        if start not in self._found:
            begin = _date_of(self.folders[start].name, self._calendar)
            self._found[start] = [
                dict(
                    sorted(
                        (date - begin, (path, number))
                        for path in paths
                        for number, date in enumerate(self._dates(path))
                    )
                )
                for paths in self._paths(start)
            ]
        return self._found[start]

    @cached_property
    def _found(self) -> dict[int, list[dict[timedelta, tuple[Path, int]]]]:
        return {}

    def _dates(self, path: Path) -> list[Any]:
        """Valid times in a file; the name of a file of one time has it."""
        if named := _START.fullmatch(path.stem.replace("_T", "T")):
            return [_date_of(named[0], self._calendar)]
        times = with_our_names(self._files.dataset(path))[TIME].values
        if times.dtype == object:
            return [*times]
        stamps = pd.DatetimeIndex(times)
        return [_date_of(f"{own:%Y%m%d_%H%M}", self._calendar) for own in stamps]


def _date_of(name: str, calendar: str) -> Any:
    """The date in a name such as 20010601_0000Z or 2001-06-01T00Z."""
    found = _START.match(name)
    assert found is not None, f"{name} was chosen for its date"
    year, month, day, hour, minute = (int(number or 0) for number in found.groups())
    if calendar in ("standard", "proleptic_gregorian"):
        return datetime(year, month, day, hour, minute)
    return cftime.datetime(year, month, day, hour, minute, calendar=calendar)


Forecasts: TypeAlias = StoreOfForecasts | FolderOfForecasts
