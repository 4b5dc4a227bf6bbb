"""Reads files of constants: grids, level coefficients, surface fields."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.resources import files
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from credit_jax.io.open_files import opened
from credit_jax.named_fields import axes
from credit_jax.named_fields.coordinates import (
    CoordinateValues,
    GridCoordinates,
    LevelValues,
    as_values,
)
from credit_jax.physics.conservation import PhysicsGrid, VerticalLevels, area_weights

# Coefficients a in Pa and b of hybrid levels.
Coefficients: TypeAlias = tuple[np.ndarray, np.ndarray]


def read_arrays(path: str, names: Sequence[str]) -> list[np.ndarray]:
    """Reads variables or coordinates of a NetCDF file or a Zarr store as float64."""
    file = find_file(os.path.expandvars(path))
    with opened(file) as dataset:
        missing = [name for name in names if name not in dataset.variables]
        if missing:
            grid = ", ".join(map(str, dataset.variables))
            raise ValueError(
                f"{file}: no variable {', '.join(missing)}; there are: {grid}"
            )
        arrays = [np.asarray(dataset[name].values, np.float64) for name in names]
    for name, array in zip(names, arrays, strict=True):
        if not np.isfinite(array).all():
            raise ValueError(f"{file}: {name} has values that are not finite")
    return arrays


def read_grid(
    path: str, names: Sequence[str], *, hybrid: bool, midpoint: bool
) -> PhysicsGrid:
    """Reads the areas and levels that the conservation fixers use."""
    if len(names) != (4 if hybrid else 3):
        expected = "longitude, latitude, a, b" if hybrid else "longitude, latitude, p"
        raise ValueError(f"lon_lat_level_name is {list(names)}; expected {expected}")
    # Degrees, (lon,) and (lat,) or both (lat, lon); a (Pa) and b, or pressure (Pa).
    lon, lat, *levels = read_arrays(path, names)
    if lon.ndim == lat.ndim == 1:
        lon, lat = np.meshgrid(lon, lat)
    if lon.ndim != 2 or lat.shape != lon.shape or any(x.ndim != 1 for x in levels):
        shapes = ", ".join(map(str, (lon.shape, lat.shape, *(x.shape for x in levels))))
        raise ValueError(
            f"{path}: {', '.join(names)} have shapes {shapes}; expected (lat, lon) "
            "twice, then (level,)"
        )
    a, b = levels if hybrid else (levels[0], np.zeros_like(levels[0]))
    origin = f"{path}: {', '.join(names[2:])}"
    straight = (lat == lat[:, :1]).all() and (lon == lon[:1]).all()
    axes = GridCoordinates(
        as_values(lat[:, 0]) if straight else None,
        as_values(lon[0]) if straight else None,
        None if hybrid or midpoint else LevelValues(a, "Pa"),
        path,
    )
    numbers = level_numbers(path, names[2], between=midpoint)
    levels_of = VerticalLevels(a, b, midpoint, origin, numbers)
    return PhysicsGrid(levels_of, area_weights(lon, lat), axes)


def read_surface(path: str, name: str) -> Float[np.ndarray, "lat lon"]:
    """Reads a (lat, lon) field; leading dims of length 1 are dropped."""
    (field,) = read_arrays(path, [name])
    while field.ndim > 2 and field.shape[0] == 1:
        field = field[0]
    if field.ndim != 2:
        raise ValueError(f"{path}: {name} has shape {field.shape}; expected (lat, lon)")
    return field


def read_coefficients(
    path: str,
    a: str,
    b: str,
    levels: Sequence[int] | None = None,  # counted from 1; None takes all
    *,
    interfaces: bool = False,  # also the lower interface of the last level
    between: bool = False,  # averages interfaces to centers
) -> Coefficients:
    """Reads a in Pa and b of hybrid levels, or of their interfaces, as float64."""
    first, second = read_arrays(path, [a, b])
    # A variable named for both has a and b in its first two rows.
    if first.ndim == 2 and a == b:
        first, second = first[0], second[1]
    if between:
        first, second = (0.5 * (x[:-1] + x[1:]) for x in (first, second))
    if levels is None:
        return first, second
    levels, count = [*levels, *([levels[-1] + 1] if interfaces else [])], len(first)
    if min(levels) < 1 or max(levels) > count:
        raise ValueError(
            f"{path}: {a} is of levels 1 to {count}, but `levels` (counted from 1) "
            f"asks for {levels}"
        )
    index = [level - 1 for level in levels]
    return first[index], second[index]


def level_values(path: str, name: str) -> CoordinateValues | None:
    """Reads the coordinate of a variable's last dim, levels or interfaces, or None."""
    with opened(find_file(os.path.expandvars(path))) as dataset:
        dims = dataset[name].dims[-1:]
        if not dims or dims[0] not in dataset.coords:
            return None
        levels = dataset[dims[0]].load()
        return axes.level_values(levels, path) if levels.dtype.kind in "iuf" else None


def level_numbers(
    path: str, name: str, levels: Sequence[int] | None = None, *, between: bool = False
) -> CoordinateValues | None:
    """Reads the numbers of levels (counted from 1), the values of a coordinate."""
    numbers = level_values(path, name)
    if numbers is None:
        return None
    # The number of a level between interfaces is that of its upper one.
    numbers = numbers[:-1] if between else numbers
    return numbers if levels is None else tuple(numbers[k - 1] for k in levels)


def find_file(path: str) -> str:
    """Returns `path` if it exists, else the file of this package with that name."""
    if os.path.exists(path):
        return path
    packaged = files("credit_jax.physics").joinpath("level_info")
    if not os.path.dirname(path) and packaged.joinpath(path).is_file():
        return str(packaged.joinpath(path))
    names = ", ".join(sorted(p.name for p in packaged.iterdir() if p.is_file()))
    raise FileNotFoundError(f"no file {path!r}; files that come with it: {names}")
