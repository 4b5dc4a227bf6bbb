"""Forecasts in files, read by lead time: Zarr stores and CREDIT's folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from credit_jax.data.calendars import as_dates, calendar_of, shift_all, to_labels
from credit_jax.evaluation.grid_file import GridFile
from credit_jax.evaluation.references import open_dataset
from credit_jax.io.open_files import OpenFiles
from credit_jax.named_fields.variables import LevelSelection

# Names of the dims of start dates, lead times and members.
STARTS = ("time", "init_time")
LEADS = ("prediction_timedelta", "lead_time", "step")
MEMBERS = ("number", "realization", "member", "sample", "ensemble")
# Folders of start dates: 20010601_0000Z, and 2001-06-01T00Z of CREDIT's gen1.
_START = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)[_T](\d\d)(\d\d)?Z")
_MEMBER = re.compile(r"member_\d+")
_STEP = re.compile(r"(\d{4}-\d{2}-\d{2})_T(\d{2})(\d{2})Z")
# Start, lead time, variables -> (member, channel, lat, lon).
Read = Callable[[int, int, LevelSelection], Float[np.ndarray, "member channel lat lon"]]


@dataclass(frozen=True, eq=False)
class ForecastFiles:
    """Forecasts, read one lead time at a time."""

    where: str
    starts: np.ndarray  # (start,) labels, datetime64[ns]
    leads: np.ndarray  # (lead,) above 0, timedelta64[ns]
    calendar: str  # of the valid times
    num_members: int
    read: Read  # all members at a lead time, float32
    grid: GridFile  # a file with all variables and the grid


def valid_time(files: ForecastFiles, start: int, lead: int) -> np.datetime64:
    """The time of a forecast at a lead time."""
    step: Any = pd.Timedelta(files.leads[lead])
    return shift_all(files.starts[start : start + 1], step, files.calendar)[0]


def valid_times(files: ForecastFiles) -> np.ndarray:
    """All times of all forecasts and their start dates, in order."""
    steps: list[Any] = [pd.Timedelta(lead) for lead in files.leads]
    times = [shift_all(files.starts, step, files.calendar) for step in steps]
    return np.unique(np.concatenate([files.starts, *times]))


def _stacked(
    file: GridFile,
    indices: Mapping[str, int],
    selection: LevelSelection,
    member: str | None,
) -> Float[np.ndarray, "member channel lat lon"]:
    """Variables concatenated along the channel dim, with a member dim."""
    fields = []
    for name, levels in selection.items():
        if name not in file.dataset:
            raise ValueError(f"{file.where} lacks the variable {name}")
        field = file.read(name, indices, levels)
        if member is None:
            field = field[None]
        fields.append(field if field.ndim == 4 else field[:, None])
    return np.concatenate(fields, axis=1)


def open_zarr(path: str, files: OpenFiles) -> ForecastFiles:
    """Opens a store in WeatherBench's layout without reading fields."""
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
            f"{', '.join(sorted(map(str, dataset.dims)))}"
        )
    for name in (time, lead):
        unique, counts = np.unique(np.asarray(dataset[name].values), return_counts=True)
        if (counts > 1).any():
            raise ValueError(
                f"--forecast: {path}: {name} has {unique[counts > 1][0]} more than "
                "once; which of the forecasts is meant cannot be known"
            )
    others = (time, *([member] if member else []), lead)
    grid = GridFile(path, dataset, others, (time, lead))
    leads = _lead_times(dataset[lead], path)
    order = np.argsort(leads)
    order = order[leads[order] > np.timedelta64(0, "ns")]

    def read(start: int, number: int, selection: LevelSelection) -> np.ndarray:
        indices = {time: start, lead: int(order[number])}
        return _stacked(grid, indices, selection, member)

    times = dataset[time].values
    starts, calendar = to_labels(times, path), calendar_of(times, path)
    num_members = dataset.sizes[member] if member else 1
    return ForecastFiles(path, starts, leads[order], calendar, num_members, read, grid)


def _lead_times(array: Any, origin: str) -> np.ndarray:
    if np.issubdtype(array.dtype, np.timedelta64):
        return array.values.astype("timedelta64[ns]")
    unit: Any = str(array.attrs.get("units", "hours")).lower()
    try:
        # pandas has the names of CF, and another letter for days.
        length = pd.to_timedelta(1, unit="days" if unit == "d" else unit)
    except ValueError:
        raise ValueError(
            f"{origin}: {array.name} is in {unit!r}; expected a unit of time, such as "
            "hours: convert it"
        ) from None
    return array.values * length.to_timedelta64().astype("timedelta64[ns]")


def start_folders(folder: Path) -> list[Path]:
    """The folders of start dates, in the order of the dates."""
    folders = (entry for entry in folder.iterdir() if _START.fullmatch(entry.name))
    return sorted(folders, key=lambda entry: _start_of(entry.name))


def _start_of(name: str) -> np.datetime64:
    """The date in the name of a folder."""
    match = _START.fullmatch(name)
    assert match is not None, f"{name} was chosen for its date"
    year, month, day, hour, minute = match.groups(default="00")
    return np.datetime64(f"{year}-{month}-{day}T{hour}:{minute}", "ns")


def open_netcdf(
    parent: Path, folders: Sequence[Path], files: OpenFiles
) -> ForecastFiles:
    """Opens CREDIT's folders of start dates, with files of one or several steps."""
    starts = np.array([_start_of(folder.name) for folder in folders])
    # (start, member) -> valid time -> file, and position of the time in it.
    steps: dict[tuple[int, int], dict[np.datetime64, tuple[Path, int]]] = {}
    calendar, leads = "standard", np.array([], "timedelta64[ns]")
    for number, folder in enumerate(folders):
        members = sorted(p for p in folder.iterdir() if _MEMBER.fullmatch(p.name))
        for member, directory in enumerate(members or [folder]):
            paths = sorted(directory.glob("*.nc"))
            if not paths:
                raise ValueError(f"--forecast: {directory} holds no NetCDF files")
            steps[number, member] = _valid(paths, files)
            if len(steps) == 1:
                times = np.atleast_1d(files.dataset(paths[0])["time"].values)
                calendar = calendar_of(times, str(paths[0]))
                dates = as_dates(np.array([starts[0], *sorted(steps[0, 0])]), calendar)
                leads = np.array([d - dates[0] for d in dates[1:]], "timedelta64[ns]")

    def opened(path: Path) -> GridFile:
        dataset, time = files.dataset(path), ("time",)
        timed = time if "time" in dataset.dims else ()
        return GridFile(str(path), dataset, time, timed)

    def read(start: int, lead: int, selection: LevelSelection) -> np.ndarray:
        time, fields = valid_time(forecasts, start, lead), []
        for member in range(num_members):
            path, position = steps[start, member][time]
            fields.append(_stacked(opened(path), {"time": position}, selection, None))
        return np.concatenate(fields)

    num_members = len(steps) // len(starts)
    first, _ = next(iter(steps[0, 0].values()))
    forecasts = ForecastFiles(
        str(parent), starts, leads, calendar, num_members, read, opened(first)
    )
    for start in range(len(starts)):
        for member in {member for _, member in steps}:
            for lead in range(len(leads)):
                if valid_time(forecasts, start, lead) not in steps.get(
                    (start, member), {}
                ):
                    raise ValueError(
                        f"--forecast: {parent}: the forecast from "
                        f"{str(starts[start])[:16]}, member {member}, lacks lead time "
                        f"{pd.Timedelta(leads[lead])}; make it with --resume, or leave "
                        "its folder out"
                    )
    return forecasts


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
            times = np.atleast_1d(files.dataset(path)["time"].values)
            labels = to_labels(times, str(path))
        for position, label in enumerate(labels):
            if label in by_time:
                raise ValueError(
                    f"--forecast: {path} has the time {str(label)[:16]}, which is in "
                    f"{by_time[label][0]}, too; which of the two is meant cannot be "
                    "known"
                )
            by_time[label] = path, position
    return by_time


def in_common(
    first: ForecastFiles, second: ForecastFiles
) -> tuple[ForecastFiles, ForecastFiles, list[str]]:
    """Restricts forecasts to the start dates and lead times that both have."""
    starts = np.intersect1d(first.starts, second.starts)
    leads = np.intersect1d(first.leads, second.leads)
    if not (len(starts) and len(leads)):
        raise ValueError(
            f"--against: {second.where} has no start date and lead time of "
            f"{first.where}: starts {str(second.starts.min())[:16]} to "
            f"{str(second.starts.max())[:16]}, and {str(first.starts.min())[:16]} to "
            f"{str(first.starts.max())[:16]}"
        )
    restricted, notes = [], []
    for files in (first, second):
        at, steps = (
            [int(np.flatnonzero(values == value)[0]) for value in common]
            for values, common in ((files.starts, starts), (files.leads, leads))
        )
        left = len(files.starts) - len(at), len(files.leads) - len(steps)
        if any(left):
            notes.append(
                f"--against: {files.where}: {left[0]} start dates and {left[1]} lead "
                "times are not in both, and left out"
            )

        def read(start, lead, selection, files=files, at=at, steps=steps):
            return files.read(at[start], steps[lead], selection)

        restricted.append(replace(files, starts=starts, leads=leads, read=read))
    return restricted[0], restricted[1], notes
