"""Reads forecasts from a Zarr store or from CREDIT's folders of NetCDF files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.data.calendars import calendar_of, shift_all, to_labels
from credit_jax.evaluation.grid_file import GridFile
from credit_jax.evaluation.references import Wanted, open_dataset
from credit_jax.io.open_files import OpenFiles

STORE = "forecast.zarr"
_ZARR = ("zarr.json", ".zgroup", ".zmetadata")
STARTS = ("time", "init_time")
LEADS = ("prediction_timedelta", "lead_time", "step")
MEMBERS = ("number", "realization", "member", "sample", "ensemble")
# Folders of start dates: 20010601_0000Z, and 2001-06-01T00Z of CREDIT's gen1.
_START = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)[_T](\d\d)(\d\d)?Z")
_MEMBER = re.compile(r"member_\d+")
_STEP = re.compile(r"(\d{4}-\d{2}-\d{2})_T(\d{2})(\d{2})Z")
_DAY = np.timedelta64(1, "D")


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
        self, start: int, lead: int, wanted: Wanted
    ) -> Float[np.ndarray, "member channel lat lon"]:
        """All members of a forecast at a lead time, float32."""
        ...


@dataclass(frozen=True, eq=False)
class ZarrForecasts:
    """A Zarr store in WeatherBench's layout.

    Attributes:
        grid: the store.
        time, lead: names of the dims of start dates and lead times.
        member: name of the dim of members, or None.
    """

    grid: GridFile
    time: str
    lead: str
    member: str | None

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
        self, start: int, lead: int, wanted: Wanted
    ) -> Float[np.ndarray, "member channel lat lon"]:
        places = {self.time: start, self.lead: int(self._positions[lead])}
        return _stacked(self.grid, places, wanted, self.member)

    @cached_property
    def _all_leads(self) -> np.ndarray:
        array = self.grid.dataset[self.lead]
        if np.issubdtype(array.dtype, np.timedelta64):
            return array.values.astype("timedelta64[ns]")
        unit = array.attrs.get("units", "hours")
        return np.asarray(pd.to_timedelta(array.values, unit=unit[:1]))

    @cached_property
    def _positions(self) -> np.ndarray:
        leads = self._all_leads
        order = np.argsort(leads)
        return order[leads[order] > np.timedelta64(0)]


@dataclass(frozen=True, eq=False)
class NetcdfForecasts:
    """CREDIT's layout: folders of start dates, with files of one or several steps.

    Attributes:
        where: the folder above.
        starts: see `ForecastFiles`.
        leads: see `ForecastFiles`.
        calendar: see `ForecastFiles`.
        places: (start, member) -> valid time -> file and position of the time in it.
        open_files: the files that are open.
    """

    where: str
    starts: np.ndarray
    leads: np.ndarray
    calendar: str
    places: Mapping[tuple[int, int], Mapping[np.datetime64, tuple[Path, int]]]
    open_files: OpenFiles

    @property
    def num_members(self) -> int:
        return len(self.places) // len(self.starts)

    @property
    def grid(self) -> GridFile:
        path, _ = next(iter(self.places[0, 0].values()))
        return self._open(path)

    def read(
        self, start: int, lead: int, wanted: Wanted
    ) -> Float[np.ndarray, "member channel lat lon"]:
        time = valid_time(self, start, lead)
        members = []
        for member in range(self.num_members):
            path, position = self.places[start, member][time]
            members.append(_stacked(self._open(path), {"time": position}, wanted, None))
        return np.concatenate(members)

    def _open(self, path: Path) -> GridFile:
        return GridFile(str(path), self.open_files.dataset(path), ("time",))


def valid_time(files: ForecastFiles, start: int, lead: int) -> np.datetime64:
    """The time of a forecast at a lead time."""
    step: Any = pd.Timedelta(files.leads[lead])
    return shift_all(files.starts[start : start + 1], step, files.calendar)[0]


def valid_times(files: ForecastFiles) -> np.ndarray:
    """All times of all forecasts and their start dates, in order."""
    steps: list[Any] = [pd.Timedelta(own) for own in files.leads]
    found = [shift_all(files.starts, step, files.calendar) for step in steps]
    return np.unique(np.concatenate([files.starts, *found]))


def open_forecasts(path: str, open_files: OpenFiles | None = None) -> ForecastFiles:
    """Opens forecasts without reading fields.

    Args:
        path: a Zarr store, a folder with `forecast.zarr`, or CREDIT's folder.
        open_files: files that are open already.

    Raises:
        FileNotFoundError: there is no such path.
        ValueError: it contains no forecasts, or parts of them are missing.
    """
    files = open_files or OpenFiles()
    place = Path(path)
    if (place / STORE).is_dir():
        return _open_zarr(str(place / STORE), files)
    if place.is_dir():
        if folders := _start_folders(place):
            return _open_netcdf(place, folders, files)
        if not any((place / name).exists() for name in _ZARR):
            raise ValueError(
                f"--forecast: {path} holds no forecasts: neither {STORE} nor folders "
                "of start dates such as 20010601_0000Z, and it is no Zarr store"
            )
    return _open_zarr(path, files)


def holds_forecasts(folder: Path) -> bool:
    """Whether a folder holds a store of forecasts, or CREDIT's folders."""
    if not folder.is_dir():
        return False
    return (folder / STORE).exists() or bool(_start_folders(folder))


def _start_folders(place: Path) -> list[Path]:
    """The folders of start dates, in the order of the dates."""
    found = (own for own in place.iterdir() if _START.fullmatch(own.name))
    return sorted(found, key=lambda own: _start_of(own.name))


def _open_zarr(path: str, files: OpenFiles) -> ZarrForecasts:
    dataset = open_dataset(path, "--forecast", files)

    def named(names: Sequence[str]) -> str | None:
        there = (name for name in names if name in dataset.coords)
        return next(there, next((n for n in names if n in dataset.dims), None))

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
    others = (time, *([member] if member else []), lead)
    return ZarrForecasts(GridFile(path, dataset, others), time, lead, member)


def _open_netcdf(
    place: Path, folders: Sequence[Path], files: OpenFiles
) -> NetcdfForecasts:
    starts = np.array([_start_of(own.name) for own in folders])
    places: dict[tuple[int, int], dict[np.datetime64, tuple[Path, int]]] = {}
    calendar, leads = "standard", np.array([], "timedelta64[ns]")
    for number, folder in enumerate(folders):
        members = sorted(p for p in folder.iterdir() if _MEMBER.fullmatch(p.name))
        for member, own in enumerate(members or [folder]):
            paths = sorted(own.glob("*.nc"))
            if not paths:
                raise ValueError(f"--forecast: {own} holds no NetCDF files")
            if not places:
                calendar = calendar_of(_times(paths[0], files), str(paths[0]))
                leads = _leads(paths, starts[0], calendar, files)
            places[number, member] = _valid(paths, files)
    found = NetcdfForecasts(str(place), starts, leads, calendar, places, files)
    _check_complete(found)
    return found


def _start_of(name: str) -> np.datetime64:
    """The date in the name of a folder."""
    found = _START.fullmatch(name)
    assert found is not None, f"{name} was chosen for its date"
    year, month, day, hour, minute = found.groups(default="00")
    return np.datetime64(f"{year}-{month}-{day}T{hour}:{minute}", "ns")


def _check_complete(found: NetcdfForecasts) -> None:
    members = {member for _, member in found.places}
    for start in range(len(found.starts)):
        for member in members:
            own = found.places.get((start, member), {})
            for lead in range(len(found.leads)):
                if valid_time(found, start, lead) not in own:
                    raise ValueError(
                        f"--forecast: {found.where}: the forecast from "
                        f"{str(found.starts[start])[:16]}, member {member}, lacks lead "
                        f"time {pd.Timedelta(found.leads[lead])}; make it with "
                        "--resume, or leave its folder out"
                    )


def _times(path: Path, files: OpenFiles) -> np.ndarray:
    return np.atleast_1d(files.dataset(path)["time"].values)


def _valid(
    paths: Sequence[Path], files: OpenFiles
) -> dict[np.datetime64, tuple[Path, int]]:
    """Valid time -> file and position; from the name of files of a single step."""
    found: dict[np.datetime64, tuple[Path, int]] = {}
    for path in paths:
        step = _STEP.fullmatch(path.stem)
        if step:
            time = np.datetime64(f"{step[1]}T{step[2]}:{step[3]}", "ns")
            found[time] = path, 0
        else:
            labels = to_labels(_times(path, files), str(path))
            found |= {label: (path, k) for k, label in enumerate(labels)}
    return found


def _leads(
    paths: Sequence[Path], start: np.datetime64, calendar: str, files: OpenFiles
) -> np.ndarray:
    """Lead times of the first forecast, counted in its calendar."""
    times = sorted(_valid(paths, files))
    if calendar == "standard":
        return np.array([time - start for time in times], "timedelta64[ns]")
    # In other calendars the difference of labels may exceed the lead time by a few
    # days.
    found = []
    for time in times:
        lead = (time - start).astype("timedelta64[ns]")
        for days in range(3):
            step: Any = pd.Timedelta(lead - days * _DAY)
            if shift_all(np.array([start]), step, calendar)[0] == time:
                found.append(step.to_timedelta64())
                break
    return np.array(found, "timedelta64[ns]")


def _stacked(
    file: GridFile, places: Mapping[str, int], wanted: Wanted, member: str | None
) -> Float[np.ndarray, "member channel lat lon"]:
    """Variables concatenated along the channel dim, with a member dim."""
    fields = []
    for name, levels in wanted.items():
        if name not in file.dataset:
            raise ValueError(f"{file.where} lacks the variable {name}")
        field = file.read(name, places, levels)
        if member is None:
            field = field[None]
        fields.append(field if field.ndim == 4 else field[:, None])
    return np.concatenate(fields, axis=1)
