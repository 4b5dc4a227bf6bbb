"""Interpolation of columns, linear in the logarithm of pressure."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from credit_jax.physics.arrays import by_level, clip, namespace, take_levels

SMALLEST_PRESSURE = 0.57  # Pa, before a logarithm: CREDIT's top of the model

Columns = Float[Any, "batch level time lat lon"]
# Of some batch, time, lat and lon, or the same for all.
Points = Float[Any, "#batch point #time #lat #lon"]


def interpolate_columns(
    values: Columns, x: Columns, points: Points
) -> Float[Any, "batch point time lat lon"]:
    """Linear in x, constant outside its range: `numpy.interp` of every column.

    Args:
        values: on the levels of x.
        x: rising with the level.
        points: where to interpolate, in any order; one column or all of them.

    Returns:
        Values at the points.
    """
    xp = namespace(values, x, points)
    shape = (x.shape[0], points.shape[1], *x.shape[2:])
    points = xp.broadcast_to(points, shape)
    upper = clip(_count_up_to(x, points), 1, x.shape[1] - 1)
    x_low, x_high = take_levels(x, upper - 1), take_levels(x, upper)
    weight = clip((points - x_low) / (x_high - x_low), 0.0, 1.0)
    low, high = take_levels(values, upper - 1), take_levels(values, upper)
    return low + weight * (high - low)


def log_pressure(
    a: Any, b: Any, surface_pressure: Float[Any, "batch 1 time lat lon"]
) -> Columns:
    """log(a + b ps) of hybrid levels, of at least 0.57 Pa."""
    p = by_level(a, surface_pressure) + by_level(b, surface_pressure) * surface_pressure
    return namespace(p).log(clip(p, SMALLEST_PRESSURE))


def hybrid_to_hybrid(
    values: Columns,
    surface_pressure: Float[Any, "batch 1 time lat lon"],
    source: tuple[np.ndarray, np.ndarray],
    dest: tuple[np.ndarray, np.ndarray],
) -> Float[Any, "batch point time lat lon"]:
    """From one set of hybrid levels to another, with one surface pressure.

    Args:
        values: on the source levels.
        surface_pressure: (batch, 1, time, lat, lon) Pa.
        source, dest: (a in Pa, b) of the levels' centers; those of the source from the
            top down or from the ground up.
    """
    a, b = source
    if not rises(a, b):
        a, b, values = a[::-1], b[::-1], values[:, ::-1]
    known = log_pressure(a, b, surface_pressure)
    return interpolate_columns(values, known, log_pressure(*dest, surface_pressure))


def rises(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the pressure of hybrid levels rises with their number."""
    pressure = np.asarray(a) + np.asarray(b) * 101325.0
    return not pressure[0] > pressure[-1]


def _count_up_to(x: Columns, points: Points) -> Int[Any, "batch point time lat lon"]:
    """Number of levels with x <= point, by bisection."""
    xp, size = namespace(x, points), x.shape[1]
    count = xp.zeros(points.shape, np.int32)
    step = 1 << (size.bit_length() - 1)
    while step:
        more = count + step
        last = take_levels(x, xp.minimum(more, size) - 1)
        count = xp.where((more <= size) & (last <= points), more, count)
        step //= 2
    return count
