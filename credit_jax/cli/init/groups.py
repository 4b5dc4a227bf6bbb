"""What data files say of a config: variables, levels, times, calendar and grid."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from credit_jax.data.calendars import names_of_times
from credit_jax.data.sources.files import discover, time_format
from credit_jax.data.sources.reader import OpenFile, Reader
from credit_jax.io.open_files import OpenFiles
from credit_jax.io.remote import is_url
from credit_jax.named_fields.axes import Horizontal, coordinate, level_values

# A date in a file's name: a year, or one with month, day and hour, such as 200001,
# 2000-01-31, 20000131T06 or 20000131.t06z.
_DATE = re.compile(
    r"(?<!\d)(?P<Y>(?:1[6-9]|2[0-2])\d\d)"
    r"(?:(?P<sep>[-_.]?)(?P<m>0[1-9]|1[0-2])"
    r"(?:(?P=sep)(?P<d>0[1-9]|[12]\d|3[01])"
    r"(?:[-_.]?[Tt]?(?P<H>[01]\d|2[0-3]))?)?)?(?!\d)"
)


@dataclass(frozen=True)
class FileGroup:
    """Files that one path template names.

    Attributes:
        template: path with %Y, %m, ... where the date is, or the path of the only file.
        first_path: the first file.
        time_coord, level_coord: names of the dims; None if the files have none.
        timed: variables with time, by vars_3D (with levels) and vars_2D.
        static: variables without time or with a single one, likewise.
        num_levels: number of levels; 0 without any.
        levels: values of the level coordinate, if it has some.
        times: (time,) labels of all files.
        calendar: calendar of the times.
        shape: number of rows and columns.
        latitude_name: name of the latitude coordinate; None on other grids.
    """

    template: str
    first_path: str
    time_coord: str | None
    level_coord: str | None
    timed: Mapping[str, list[str]]
    static: Mapping[str, list[str]]
    num_levels: int
    levels: tuple[float, ...]
    times: pd.DatetimeIndex = field(repr=False)
    calendar: str
    shape: tuple[int, int]
    latitude_name: str | None

    def __str__(self) -> str:
        levels = f", {self.num_levels} levels" if self.num_levels else ""
        times = "no times"
        if len(self.times):
            times = f"{len(self.times)} times from {self.times[0]} to {self.times[-1]}"
            times += f", calendar {self.calendar}"
        rows, columns = self.shape
        return f"{self.template}: {rows} x {columns} points{levels}, {times}"


def inspect_files(paths: Sequence[str]) -> list[FileGroup]:
    """Reads the metadata of files, and groups those whose names differ by a date.

    Args:
        paths: NetCDF files and Zarr stores; a path may be a template with %Y, or the
            address of a store.

    Raises:
        OSError, ValueError: a file cannot be read, has no grid, or a variable is in
            files of several templates.
    """
    groups = [_group(template, members) for template, members in _templates(paths)]
    places: dict[tuple[str, str], str] = {}
    for group in groups:
        fields = (*group.timed.items(), *group.static.items())
        for dims, name in ((dims, name) for dims, names in fields for name in names):
            first = places.setdefault((dims, name), group.template)
            if first != group.template:
                raise ValueError(
                    f"--data: {name} is in {first} and in {group.template}; expected "
                    "files of one variable under one name that differs by a date. "
                    "Give that name, with %Y, %m, %d or %H where the date is, or write "
                    "all times into one Zarr store"
                )
    return groups


def _templates(paths: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields templates, and the files that each matches, in order."""
    by_template: dict[str, list[str]] = {}
    for path in paths:
        if time_format(path) or is_url(path):
            by_template.setdefault(path, []).extend(discover(path, "--data").paths)
            continue
        if not os.path.exists(path):
            raise FileNotFoundError(f"--data: there is no {path}")
        path = path.rstrip("/")
        by_template.setdefault(_template(path), []).append(path)
    for template, matches in by_template.items():
        # A single file has all times, whatever its name.
        alone = len(matches) == 1 and template not in paths
        yield (matches[0] if alone else template), sorted(matches)


def _template(path: str) -> str:
    """A path with strftime codes where the last date of its name is."""
    folder, name = os.path.split(path)
    dates = list(_DATE.finditer(name))
    if not dates:
        return path
    parts = [(dates[-1].span(code), f"%{code}") for code in "YmdH"]
    for (start, end), code in reversed(parts):
        if start >= 0:
            name = f"{name[:start]}{code}{name[end:]}"
    return os.path.join(folder, name)


def _group(template: str, paths: Sequence[str]) -> FileGroup:
    time_coord = _time_coord(paths[0])
    reader = Reader(time_coord or "time", None)
    opened = [reader.open(path) for path in paths]
    first = opened[0]
    data, sizes = first.dataset, first.dataset.sizes
    rows, columns = _space(first)
    dims = {
        str(name): [str(dim) for dim in first.variable(str(name)).dims]
        for name, variable in data.data_vars.items()
        if variable.dtype.kind in "fiu"
    }
    # Bounds of coordinates, and coefficients of hybrid levels, are not on the grid.
    on_grid = {k: d for k, d in dims.items() if {rows, columns} <= {*d}}
    kinds: tuple[Horizontal, ...] = ("latitude", "longitude")
    points = [coordinate(data, kind, 2) for kind in kinds]
    for name in (str(each.name) for each in points if each is not None):
        on_grid.pop(name, None)
    others = {dim for used in on_grid.values() for dim in used}
    others -= {time_coord, rows, columns}
    if len(others) > 1:
        listed = ", ".join(sorted(others))
        raise ValueError(
            f"--data: {first.path} has the dims {listed} beside time, {rows} and "
            f"{columns}, expected one of levels; write files with one"
        )
    level = next(iter(others), None)
    times = [file.times for file in opened if file.times is not None]
    labels: Any = [label for index in times for label in index.values]
    # The source `local` reads static fields at the only time that they have.
    labels = np.array(labels if len(labels) > 1 else [], "datetime64[ns]")
    fields = {
        timed: {
            key: [
                name
                for name, used in on_grid.items()
                if (len(labels) > 0 and time_coord in used) == timed
                and (level in used) == deep
            ]
            for key, deep in (("vars_3D", True), ("vars_2D", False))
        }
        for timed in (True, False)
    }
    values = ()
    if level in data.coords:
        values = level_values(data.coords[level], first.path)
    return FileGroup(
        template,
        first.path,
        time_coord,
        level,
        timed=fields[True],
        static=fields[False],
        num_levels=0 if level is None else int(sizes[level]),
        levels=tuple(int(v) if v == int(v) else float(v) for v in values),
        times=pd.DatetimeIndex(labels),
        calendar=first.calendar,
        shape=(int(sizes[rows]), int(sizes[columns])),
        latitude_name=None if first.latitude is None else str(first.latitude.name),
    )


def _time_coord(path: str) -> str | None:
    """The dim whose coordinate has dates."""
    dataset = OpenFiles().dataset(path, None)
    names = names_of_times(dataset)
    return next((name for name in names if name in dataset.dims), None)


def _space(opened: OpenFile) -> tuple[str, str]:
    """Names of the dims of rows and columns."""
    if opened.latitude is not None and opened.longitude is not None:
        return str(opened.latitude.dims[0]), str(opened.longitude.dims[0])
    for points in opened.dataset.coords.values():
        if points.ndim == 2:
            return str(points.dims[0]), str(points.dims[1])
    raise ValueError(
        f"--data: {opened.path} has no latitudes and longitudes; give them to the file "
        "as coordinates"
    )
