"""Axes of files by CF's rules: which coordinate is which, its unit, its direction.

`coordinate` finds latitudes and longitudes by `standard_name`, name, `units` or `axis`;
`horizontal` returns them in degrees, and refuses numbers that are none. `level_values`
returns levels with what the file says of them, by which `coordinates` matches them.
"""

from __future__ import annotations

import re
from typing import Literal

import numpy as np
import xarray as xr

from credit_jax.named_fields.coordinates import DEGREE_TOLERANCE, LevelValues, counts
from credit_jax.named_fields.units import conversion, text_of, unit_of

Horizontal = Literal["latitude", "longitude"]

_NAMES = {
    "latitude": ("latitude", "lat", "nav_lat", "xlat", "lats"),
    "longitude": ("longitude", "lon", "nav_lon", "xlong", "lons"),
}
_UNITS = {
    "latitude": r"deg(ree)?s?[ _]?n(orth)?",
    "longitude": r"deg(ree)?s?[ _]?e(ast)?",
}
_AXES = {"latitude": "Y", "longitude": "X"}
# Of degrees of a circle that numbers of columns go around: in radians, or as a share.
_CIRCLES = {"radians": 2 * np.pi, "shares of a circle": 1.0}


def coordinate(
    dataset: xr.Dataset, kind: Horizontal, ndim: int | None = 1
) -> xr.DataArray | None:
    """Latitudes or longitudes as they are stored; None if no variable is one."""

    def is_axis(array: xr.DataArray) -> bool:
        keys = ("axis", "cartesian_axis")
        letters = {text_of(array.attrs, key).upper() for key in keys}
        unit = text_of(array.attrs, "units")
        is_angle = not unit or _angle(unit)
        standard = text_of(array.attrs, "standard_name")
        return bool(_AXES[kind] in letters and is_angle and not standard)

    tests = (
        lambda x: text_of(x.attrs, "standard_name").lower() == kind,
        lambda x: str(x.name).lower() in _NAMES[kind],
        lambda x: bool(
            re.fullmatch(_UNITS[kind], text_of(x.attrs, "units"), re.IGNORECASE)
        ),
        is_axis,
        lambda x: text_of(x.attrs, "long_name").lower() == kind,
    )
    arrays = [
        dataset[name]
        for name in (*dataset.coords, *dataset.data_vars)
        if ndim in (None, dataset.variables[name].ndim)
    ]
    for test in tests:
        matching = [array for array in arrays if array.ndim and test(array)]
        if matching:
            # Of several, such as those of staggered grids, the ones of most variables.
            used = [dim for x in dataset.data_vars.values() for dim in x.dims]
            return max(matching, key=lambda x: sum(used.count(d) for d in x.dims))
    return None


def horizontal(
    dataset: xr.Dataset, path: str, ndim: int | None = 1
) -> tuple[xr.DataArray | None, xr.DataArray | None]:
    """Latitudes and longitudes in degrees north and east; None where there are none."""
    latitude, longitude = (
        None if x is None else _degrees(x, kind, path)
        for kind in ("latitude", "longitude")
        for x in (coordinate(dataset, kind, ndim),)
    )
    if latitude is not None and latitude.ndim == 1:
        columns = None if longitude is None or longitude.ndim != 1 else longitude
        if columns is None or columns.dims != latitude.dims:
            _check_degrees(latitude, columns, path)
    return latitude, longitude


def level_values(array: xr.DataArray, path: str) -> LevelValues:
    """The values of a level coordinate, with their unit and direction."""
    if array.dtype.kind not in "iuf" or array.ndim != 1:
        raise ValueError(
            f"{path}: the levels {array.name} are of dtype {array.dtype} and have "
            f"{array.ndim} dims, expected one of numbers, such as pressures; convert "
            "them"
        )
    unit, positive = (text_of(array.attrs, key) for key in ("units", "positive"))
    return LevelValues(array.values, unit, positive.lower())


def _angle(unit: str) -> str:
    """Whether a unit is "degree" or "radian"; "" if it is none of both."""
    is_one = unit_of(unit) in (None, unit_of("1"))
    names = () if is_one or conversion(unit, "degree") is None else ("degree", "radian")
    return next((n for n in names if conversion(unit, n) == (1.0, 0.0)), "")


def _degrees(array: xr.DataArray, kind: Horizontal, path: str) -> xr.DataArray:
    """A coordinate in degrees."""
    unit = text_of(array.attrs, "units")
    is_spelled = re.fullmatch(_UNITS[kind], unit, re.IGNORECASE)
    if _angle(unit) == "radian":
        array = array.copy(data=np.rad2deg(array.values))
    elif unit not in ("", "1") and not (is_spelled or _angle(unit)):
        raise ValueError(
            f"{path}: {array.name} is its {kind}, and in {unit!r}; expected degrees "
            f"{'north' if kind == 'latitude' else 'east'}, or radians: convert it"
        )
    values = np.asarray(array.values, float)
    limit = {"latitude": 90.0, "longitude": 540.0}[kind] + DEGREE_TOLERANCE
    if (np.abs(values) > limit).any():
        raise ValueError(
            f"{path}: {array.name} runs from {values.flat[0]:g} to "
            f"{values.flat[-1]:g}, and no {kind} is beyond {limit:.0f} degrees; write "
            f"{kind}s, not colatitudes, numbers of rows or distances"
        )
    return array


def _check_degrees(
    latitude: xr.DataArray, longitude: xr.DataArray | None, path: str
) -> None:
    """Checks that rows and columns are degrees, which their spacings tell."""
    rows = np.asarray(latitude.values, float)
    columns = np.empty(0) if longitude is None else np.asarray(longitude.values, float)
    high, wide = (
        float(np.median(np.abs(np.diff(x)))) if x.size > 1 else 0.0
        for x in (rows, columns)
    )
    around, of, name = columns.size * wide, "", latitude.name
    circle = bool(columns.size) and abs(around - 360.0) < wide
    if len(rows) > 2 and counts(rows) and rows[-1] != 90.0:
        is_region = wide == high and (circle or not counts(columns))
        of = "" if is_region else "numbers of rows"
    elif min(abs(rows[0]), abs(rows[-1])) > 1.3 and np.abs(rows).max() < 1.5709:
        narrow = not columns.size or 3 * high < wide
        of = "radians" if narrow or abs(around - 2 * np.pi) < wide else ""
    elif columns.size > 2 and 3 * wide < high:
        near = [k for k, x in _CIRCLES.items() if abs(around - x) < wide / 2]
        of, name = "".join(near[:1]), "" if longitude is None else longitude.name
    if of:
        raise ValueError(
            f"{path}: {name} is read as degrees, but seems to hold {of}: latitudes "
            f"are {high:g} apart and longitudes {wide:g}; write degrees, or units: "
            "radian"
        )
