"""What data files say of a config: variables, levels, times, calendar and grid."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from credit_jax.data.calendars import most_restrictive
from credit_jax.data.sources.files import discover, time_format
from credit_jax.data.sources.reader import OpenFile, Reader
from credit_jax.io.open_files import OpenFiles

# A year in a file's name.
_YEAR = re.compile(r"(?<!\d)(?:1[6-9]|2[0-2])\d\d(?!\d)")


@dataclass(frozen=True)
class Group:
    """Files that one path template names.

    Attributes:
        template: path with %Y where the year is, or the path of the only file.
        first_path: the first file.
        time_coord, level_coord: names of the dims; None if the files have none.
        deep, flat, static: variables with time and levels, with time alone, without
            time, in the order of the files.
        levels: values of the level coordinate.
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
    static: tuple[str, ...]
    levels: tuple[float, ...]
    times: pd.DatetimeIndex = field(repr=False)
    calendar: str
    shape: tuple[int, int]
    latitude_name: str | None


def inspect_files(paths: Sequence[str]) -> list[Group]:
    """Reads the metadata of files, and groups those whose names differ by a year.

    Args:
        paths: NetCDF files and Zarr stores; a path may be a template with %Y.

    Raises:
        OSError, ValueError: a file cannot be read, has no grid, or files of one group
            or of one config differ.
    """
    groups = []
    for template, members in _templates(paths).items():
        groups.append(_group(template, members))
    shapes = {group.shape: group for group in groups}
    if len(shapes) > 1:
        first, other, *_ = shapes.values()
        raise ValueError(
            f"--data: {first.first_path} has a grid of {_by(first.shape)}, "
            f"{other.first_path} one of {_by(other.shape)}; bring all files to one grid"
        )
    most_restrictive([group.calendar for group in groups if len(group.times)])
    return groups


def _templates(paths: Sequence[str]) -> dict[str, list[str]]:
    """Template -> the files that it matches, in order."""
    by_template: dict[str, list[str]] = {}
    for path in paths:
        if time_format(path):
            by_template.setdefault(path, []).extend(discover(path, "--data").paths)
            continue
        if not os.path.exists(path):
            raise FileNotFoundError(f"--data: there is no {path}")
        folder, name = os.path.split(path.rstrip("/"))
        years = list(_YEAR.finditer(name))
        template = path.rstrip("/")
        if years:
            last = years[-1]
            name = f"{name[: last.start()]}%Y{name[last.end() :]}"
            template = os.path.join(folder, name)
        by_template.setdefault(template, []).append(path.rstrip("/"))
    # A single file has all times, whatever its name.
    return {
        (template if len(matches) > 1 or template in paths else matches[0]): sorted(
            matches
        )
        for template, matches in by_template.items()
    }


def _group(template: str, paths: Sequence[str]) -> Group:
    time_coord = _time_coord(paths[0])
    reader = Reader(time_coord or "time", None)
    opened = [reader.open(path) for path in paths]
    first = opened[0]
    rows, columns = _space(first)
    every = [str(name) for name in first.dataset.data_vars]
    names = [name for name in every if _is_field(first, name)]
    dims = {name: [str(d) for d in first.variable(name).dims] for name in names}
    others = {
        dim
        for dim_names in dims.values()
        for dim in dim_names
        if dim not in (time_coord, rows, columns)
    }
    on_grid = {k: d for k, d in dims.items() if {rows, columns} <= {*d}}
    if len(others) > 1:
        listed = ", ".join(sorted(others))
        raise ValueError(
            f"--data: {first.path} has the dims {listed} beside time, {rows} and "
            f"{columns}, expected one of levels; write files with one"
        )
    level = next(iter(others), None)
    timed = [name for name in on_grid if time_coord in on_grid[name]]
    times = [file.times for file in opened if file.times is not None]
    labels: Any = [label for index in times for label in index.values]
    joined = pd.DatetimeIndex(np.array(labels, "datetime64[ns]"))
    if not joined.is_monotonic_increasing or not joined.is_unique:
        raise ValueError(
            f"--data: the times of {paths[0]} and the files beside it overlap; give "
            "files of which each has its own years"
        )
    sizes = first.dataset.sizes
    return Group(
        template,
        first.path,
        time_coord,
        level,
        tuple(name for name in timed if level in on_grid[name]),
        tuple(name for name in timed if level not in on_grid[name]),
        tuple(n for n in on_grid if n not in timed and level not in on_grid[n]),
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
