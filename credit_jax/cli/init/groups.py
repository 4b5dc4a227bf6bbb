"""What data files say of a config: variables, levels, times, calendar and grid."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from credit_jax.data.calendars import most_restrictive
from credit_jax.data.sources.files import discover, time_format
from credit_jax.data.sources.reader import OpenFile, Reader
from credit_jax.io.open_files import OpenFiles
from credit_jax.io.remote import is_url

# A date in a file's name: a year, or one with month, day and hour, such as 200001,
# 2000-01-31 or 20000131T06.
_DATE = re.compile(
    r"(?<!\d)(?P<Y>(?:1[6-9]|2[0-2])\d\d)"
    r"(?:(?P<sep>[-_.]?)(?P<m>0[1-9]|1[0-2])"
    r"(?:(?P=sep)(?P<d>0[1-9]|[12]\d|3[01])"
    r"(?:[-_.T]?(?P<H>[01]\d|2[0-3]))?)?)?(?!\d)"
)


@dataclass(frozen=True)
class FileGroup:
    """Files that one path template names.

    Attributes:
        template: path with %Y, %m, ... where the date is, or the path of the only file.
        first_path: the first file.
        time_coord, level_coord: names of the dims; None if the files have none.
        deep, flat: variables with time, with and without levels, in the order of the
            files.
        static_deep, static: variables without time or with a single one, likewise.
        num_levels: number of levels; 0 without any.
        levels: values of the level coordinate, if it has some.
        times: (time,) labels of all files, increasing.
        calendar: calendar of the times.
        shape: number of rows and columns.
        latitude_name: name of the latitude coordinate; None on other grids.
    """

    template: str
    first_path: str
    time_coord: str | None
    level_coord: str | None
    deep: tuple[str, ...]
    flat: tuple[str, ...]
    static_deep: tuple[str, ...]
    static: tuple[str, ...]
    num_levels: int
    levels: tuple[float, ...]
    times: pd.DatetimeIndex = field(repr=False)
    calendar: str
    shape: tuple[int, int]
    latitude_name: str | None


def inspect_files(paths: Sequence[str]) -> list[FileGroup]:
    """Reads the metadata of files, and groups those whose names differ by a date.

    Args:
        paths: NetCDF files and Zarr stores; a path may be a template with %Y, or the
            address of a store.

    Raises:
        OSError, ValueError: a file cannot be read, has no grid, or files of one group
            or of one config differ.
    """
    groups = [_group(template, members) for template, members in _templates(paths)]
    _check_names(groups)
    shapes = {group.shape: group for group in groups}
    if len(shapes) > 1:
        first, other, *_ = shapes.values()
        raise ValueError(
            f"--data: {first.first_path} has a grid of {_by(first.shape)}, "
            f"{other.first_path} one of {_by(other.shape)}; bring all files to one grid"
        )
    most_restrictive([group.calendar for group in groups if len(group.times)])
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


def _check_names(groups: Sequence[FileGroup]) -> None:
    """Checks that no variable is in files of several templates.

    Raises:
        ValueError: one is.
    """
    places: dict[str, str] = {}
    for group in groups:
        for name in (*group.deep, *group.flat, *group.static_deep, *group.static):
            first = places.setdefault(name, group.template)
            if first != group.template:
                raise ValueError(
                    f"--data: {name} is in {first} and in {group.template}; expected "
                    "files of one variable under one name that differs by a date. "
                    "Give that name, with %Y, %m, %d or %H where the date is, or write "
                    "all times into one Zarr store"
                )


def _group(template: str, paths: Sequence[str]) -> FileGroup:
    time_coord = _time_coord(paths[0])
    reader = Reader(time_coord or "time", None)
    opened = [reader.open(path) for path in paths]
    first = opened[0]
    rows, columns = _space(first)
    every = [str(name) for name in first.dataset.data_vars]
    names = [name for name in every if _is_field(first, name)]
    dims = {name: [str(d) for d in first.variable(name).dims] for name in names}
    # Bounds of coordinates, and coefficients of hybrid levels, are not on the grid.
    on_grid = {k: d for k, d in dims.items() if {rows, columns} <= {*d}}
    others = {
        dim
        for dim_names in on_grid.values()
        for dim in dim_names
        if dim not in (time_coord, rows, columns)
    }
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
    joined = pd.DatetimeIndex(
        np.array(labels if len(labels) > 1 else [], "datetime64[ns]")
    )
    if not joined.is_monotonic_increasing or not joined.is_unique:
        raise ValueError(
            f"--data: the times of {paths[0]} and the files beside it overlap; give "
            "files of which each has its own dates"
        )
    by_kind: dict[tuple[bool, bool], list[str]] = defaultdict(list)
    for name, dims_of_name in on_grid.items():
        is_timed = len(joined) > 0 and time_coord in dims_of_name
        by_kind[is_timed, level in dims_of_name].append(name)
    sizes = first.dataset.sizes
    return FileGroup(
        template,
        first.path,
        time_coord,
        level,
        tuple(by_kind[True, True]),
        tuple(by_kind[True, False]),
        tuple(by_kind[False, True]),
        tuple(by_kind[False, False]),
        0 if level is None else int(sizes[level]),
        _levels(first, level),
        joined,
        first.calendar,
        (int(sizes[rows]), int(sizes[columns])),
        None if first.latitude is None else str(first.latitude.name),
    )


def _time_coord(path: str) -> str | None:
    """The dim whose coordinate has dates."""
    dataset = OpenFiles().dataset(path, None)
    for name in dataset.dims:
        values: Any = dataset.coords[name].values if name in dataset.coords else None
        if values is None or not values.size:
            continue
        if values.dtype.kind == "M" or hasattr(values.flat[0], "calendar"):
            return str(name)
    return None


def _space(opened: OpenFile) -> tuple[str, str]:
    """Names of the dims of rows and columns."""
    if opened.latitude is not None and opened.longitude is not None:
        return str(opened.latitude.dims[0]), str(opened.longitude.dims[0])
    for coordinate in opened.dataset.coords.values():
        if coordinate.ndim == 2:
            return str(coordinate.dims[0]), str(coordinate.dims[1])
    raise ValueError(
        f"--data: {opened.path} has no latitudes and longitudes; give them to the file "
        "as coordinates"
    )


def _is_field(opened: OpenFile, name: Any) -> bool:
    return opened.dataset.variables[name].dtype.kind in "fiu"


def _levels(opened: OpenFile, dim: str | None) -> tuple[float, ...]:
    if dim is None:
        return ()
    if dim not in opened.dataset.coords:
        return ()
    values = [float(value) for value in opened.dataset.coords[dim].values]
    return tuple(int(v) if v == int(v) else v for v in values)


def _by(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
