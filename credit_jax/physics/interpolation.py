"""Interpolation of columns, linear in the logarithm of pressure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.physics.arrays import (
    STANDARD_PRESSURE,
    clip,
    hybrid_levels,
    namespace,
    take_levels,
)

AtPoints = Float[Any, "batch point time lat lon"]

SMALLEST_PRESSURE = 0.57  # Pa, lower bound of the pressure of a level in CREDIT

Columns = Float[Any, "batch level time lat lon"]
# batch, time, lat and lon may be 1 to broadcast.
Points = Float[Any, "#batch point #time #lat #lon"]


def interpolate_columns(values: Columns, pressure: Columns, points: Points) -> AtPoints:
    """Interpolates columns linearly in log(pressure), constant outside its range.

    Args:
        pressure: pressures of the levels, positive and increasing along the level dim.

    Differs from CREDIT in rounding: the weight is log(p / p_low) / log(p_high / p_low),
    which does not cancel where levels are close.
    """
    xp = namespace(values, pressure, points)
    return _between(
        *(values, pressure, points),
        lambda low, high, point: xp.log(point / low) / xp.log(high / low),
    )


def interpolate_linearly(values: Columns, heights: Columns, points: Points) -> AtPoints:
    """Interpolates columns linearly in any coordinate, constant outside its range.

    Args:
        heights: coordinate of the levels, increasing along the level dim.
    """
    return _between(
        *(values, heights, points),
        lambda low, high, point: (point - low) / (high - low),
    )


def _between(
    values: Columns, x: Columns, points: Points, weight: Callable[[Any, Any, Any], Any]
) -> Any:
    """Values between the levels around each point; `weight` is that of the upper one.

    Args:
        weight: function of x of the lower and the upper level, and of the point.
    """
    xp = namespace(values, x, points)
    points = xp.broadcast_to(points, (x.shape[0], points.shape[1], *x.shape[2:]))
    # Number of levels with x <= point, by bisection.
    count, step = xp.zeros(points.shape, np.int32), 1 << (x.shape[1].bit_length() - 1)
    while step:
        more = count + step
        last = take_levels(x, xp.minimum(more, x.shape[1]) - 1)
        count = xp.where((more <= x.shape[1]) & (last <= points), more, count)
        step //= 2
    upper = clip(count, 1, x.shape[1] - 1)
    part = weight(take_levels(x, upper - 1), take_levels(x, upper), points)
    low, high = take_levels(values, upper - 1), take_levels(values, upper)
    return low + clip(part, 0.0, 1.0) * (high - low)


def hybrid_pressure(
    a: Any, b: Any, surface_pressure: Float[Any, "batch 1 time lat lon"]
) -> Columns:
    """Pressure a + b ps of hybrid levels, Pa, at least SMALLEST_PRESSURE."""
    return clip(hybrid_levels((a, b), surface_pressure), SMALLEST_PRESSURE)


def hybrid_to_hybrid(
    values: Columns,
    surface_pressure: Float[Any, "batch 1 time lat lon"],
    source: tuple[np.ndarray, np.ndarray],
    dest: tuple[np.ndarray, np.ndarray],
) -> AtPoints:
    """Interpolates columns from one set of hybrid levels to another.

    Args:
        source, dest: coefficients (a in Pa, b) at the centers of the levels. Those of
            the source are ordered from the top down or from the ground up.
    """
    a, b = source
    if not rises(a, b):
        a, b, values = a[::-1], b[::-1], values[:, ::-1]
    grid = hybrid_pressure(a, b, surface_pressure)
    return interpolate_columns(values, grid, hybrid_pressure(*dest, surface_pressure))


def rises(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the pressure of hybrid levels increases with their index."""
    pressure = np.asarray(a) + np.asarray(b) * STANDARD_PRESSURE
    return not pressure[0] > pressure[-1]
