"""Forecasts in CREDIT's folders of NetCDF files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.data.calendars import calendar_of, shift_all, to_labels
from credit_jax.evaluation.forecast_files import stacked, valid_time
from credit_jax.evaluation.grid_file import GridFile
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.variables import LevelSelection

# Folders of start dates: 20010601_0000Z, and 2001-06-01T00Z of CREDIT's gen1.
_START = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)[_T](\d\d)(\d\d)?Z")
_MEMBER = re.compile(r"member_\d+")
_STEP = re.compile(r"(\d{4}-\d{2}-\d{2})_T(\d{2})(\d{2})Z")
_DAY = np.timedelta64(1, "D")


@dataclass(frozen=True, eq=False)
class NetcdfForecasts:
    """CREDIT's layout: folders of start dates, with files of one or several steps."""

    where: str  # the folder above
    starts: np.ndarray
    leads: np.ndarray
    calendar: str
    # (start, member) -> valid time -> file and position of the time in it.
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
        self, start: int, lead: int, selection: LevelSelection
    ) -> Float[np.ndarray, "member channel lat lon"]:
        time = valid_time(self, start, lead)
        members = []
        for member in range(self.num_members):
            path, position = self.places[start, member][time]
            members.append(
                stacked(self._open(path), {"time": position}, selection, None)
            )
        return np.concatenate(members)

    def _open(self, path: Path) -> GridFile:
        dataset, time = self.open_files.dataset(path), ("time",)
        timed = time if "time" in dataset.dims else ()
        return GridFile(str(path), dataset, time, timed)


def start_folders(place: Path) -> list[Path]:
    """The folders of start dates, in the order of the dates."""
    folders = (folder for folder in place.iterdir() if _START.fullmatch(folder.name))
    return sorted(folders, key=lambda folder: _start_of(folder.name))


def open_netcdf(
    place: Path, folders: Sequence[Path], files: OpenFiles
) -> NetcdfForecasts:
    """Opens folders without reading fields.

    Args:
        place: the folder above.
        folders: its `start_folders`.
        files: files that are open already.

    Raises:
        ValueError: files of a forecast are missing.
    """
    starts = np.array([_start_of(directory.name) for directory in folders])
    places: dict[tuple[int, int], dict[np.datetime64, tuple[Path, int]]] = {}
    calendar, leads = "standard", np.array([], "timedelta64[ns]")
    for number, folder in enumerate(folders):
        members = sorted(p for p in folder.iterdir() if _MEMBER.fullmatch(p.name))
        for member, directory in enumerate(members or [folder]):
            paths = sorted(directory.glob("*.nc"))
            if not paths:
                raise ValueError(f"--forecast: {directory} holds no NetCDF files")
            if not places:
                calendar = calendar_of(_times(paths[0], files), str(paths[0]))
                leads = _leads(paths, starts[0], calendar, files)
            places[number, member] = _valid(paths, files)
    forecasts = NetcdfForecasts(str(place), starts, leads, calendar, places, files)
    _check_complete(forecasts)
    return forecasts


def _start_of(name: str) -> np.datetime64:
    """The date in the name of a folder."""
    match = _START.fullmatch(name)
    assert match is not None, f"{name} was chosen for its date"
    year, month, day, hour, minute = match.groups(default="00")
    return np.datetime64(f"{year}-{month}-{day}T{hour}:{minute}", "ns")


def _check_complete(forecasts: NetcdfForecasts) -> None:
    members = {member for _, member in forecasts.places}
    for start in range(len(forecasts.starts)):
        for member in members:
            places = forecasts.places.get((start, member), {})
            for lead in range(len(forecasts.leads)):
                if valid_time(forecasts, start, lead) not in places:
                    raise ValueError(
                        f"--forecast: {forecasts.where}: the forecast from "
                        f"{str(forecasts.starts[start])[:16]}, member {member}, lacks "
                        f"lead time {pd.Timedelta(forecasts.leads[lead])}; make it "
                        "with --resume, or leave its folder out"
                    )


def _times(path: Path, files: OpenFiles) -> np.ndarray:
    return np.atleast_1d(files.dataset(path)["time"].values)


def _valid(
    paths: Sequence[Path], files: OpenFiles
) -> dict[np.datetime64, tuple[Path, int]]:
    """Valid time -> file and position; from the name of files of a single step."""
    by_time: dict[np.datetime64, tuple[Path, int]] = {}
    for path in paths:
        step = _STEP.fullmatch(path.stem)
        if step:
            labels = np.array([f"{step[1]}T{step[2]}:{step[3]}"], "datetime64[ns]")
        else:
            labels = to_labels(_times(path, files), str(path))
        for place, label in enumerate(labels):
            if label in by_time:
                raise ValueError(
                    f"--forecast: {path} has the time {str(label)[:16]}, which is in "
                    f"{by_time[label][0]}, too; which of the two is meant cannot be "
                    "known"
                )
            by_time[label] = path, place
    return by_time


def _leads(
    paths: Sequence[Path], start: np.datetime64, calendar: str, files: OpenFiles
) -> np.ndarray:
    """Lead times of the first forecast, counted in its calendar."""
    times = sorted(_valid(paths, files))
    if calendar == "standard":
        return np.array([time - start for time in times], "timedelta64[ns]")
    # In other calendars the difference of labels may exceed the lead time by a few
    # days.
    leads = []
    for time in times:
        lead = (time - start).astype("timedelta64[ns]")
        for days in range(3):
            step: Any = pd.Timedelta(lead - days * _DAY)
            if shift_all(np.array([start]), step, calendar)[0] == time:
                leads.append(step.to_timedelta64())
                break
    return np.array(leads, "timedelta64[ns]")
