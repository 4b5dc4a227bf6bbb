"""Columns on hybrid and pressure levels: interpolation, geopotential, sea level.

Interpolation is linear in the logarithm of pressure; below the ground it follows
Trenberth, Berry and Buja (1993), as in CREDIT. Geopotential is by the hydrostatic
equation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from credit_jax.physics.arrays import (
    DRY_GAS_CONSTANT,
    GRAVITY,
    LAPSE_RATE,
    STANDARD_PRESSURE,
    by_level,
    clip,
    hybrid_levels,
    namespace,
    take_levels,
)

AtPoints = Float[Any, "batch point time lat lon"]

SMALLEST_PRESSURE = 0.57  # Pa, lower bound of the pressure of a level in CREDIT

Columns = Float[Any, "batch level time lat lon"]
Surface = Float[Any, "batch 1 time lat lon"]
# batch, time, lat and lon may be 1 to broadcast.
Points = Float[Any, "#batch point #time #lat #lon"]


def interpolate_columns(values: Columns, pressure: Columns, points: Points) -> AtPoints:
    """Interpolates columns linearly in log(pressure), constant outside its range."""
    # Pressures are positive and increase along the level dim.
    xp = namespace(values, pressure, points)
    return _between(
        *(values, pressure, points),
        # Differs from CREDIT in rounding: this does not cancel where levels are close.
        lambda low, high, point: xp.log(point / low) / xp.log(high / low),
    )


def interpolate_linearly(values: Columns, heights: Columns, points: Points) -> AtPoints:
    """Interpolates columns linearly in increasing heights, constant outside of them."""
    return _between(
        *(values, heights, points),
        lambda low, high, point: (point - low) / (high - low),
    )


def _between(
    values: Columns, x: Columns, points: Points, weight: Callable[[Any, Any, Any], Any]
) -> Any:
    """Values between the levels around each point; `weight` is that of the upper."""
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
    # Of x of the lower and the upper level, and of the point.
    part = weight(take_levels(x, upper - 1), take_levels(x, upper), points)
    low, high = take_levels(values, upper - 1), take_levels(values, upper)
    return low + clip(part, 0.0, 1.0) * (high - low)


def hybrid_pressure(
    levels: tuple[np.ndarray, np.ndarray], surface_pressure: Surface
) -> Columns:
    """Pressure a + b ps of hybrid levels, Pa, at least SMALLEST_PRESSURE."""
    return clip(hybrid_levels(levels, surface_pressure), SMALLEST_PRESSURE)


def rises(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether the pressure of hybrid levels increases with their index."""
    pressure = np.asarray(a) + np.asarray(b) * STANDARD_PRESSURE
    return not pressure[0] > pressure[-1]


# Gas constants of CREDIT's geopotential.py; `physics.arrays` has other values.
_DRY, _VAPOR = 287.06, 461.51  # J / kg / K
# Of CREDIT's interp.py: factor of humidity in the virtual temperature, and the pressure
# (Pa) that stands for the top of the atmosphere, as in ECMWF's scripts for IFS.
_MOISTURE, _TOP = 0.609133, 0.1


def geopotential(
    surface_geopotential: Float[Any, "batch 1 1 lat lon"],  # m^2 / s^2
    surface_pressure: Surface,  # Pa
    temperature: Columns,  # K
    humidity: Columns,  # specific, kg / kg
    half_levels: tuple[np.ndarray, np.ndarray],  # (a in Pa, b) of interfaces
    *,
    flip_vertical: bool = True,  # whether levels are from the top down
) -> Columns:
    """Computes geopotential at the centers of hybrid levels, m^2 / s^2."""
    # The integral R T_v d(log p) from the ground to the centers, with the scheme of
    # Simmons and Burridge (1981).
    check_interfaces("fields", temperature, half_levels)
    xp, turn = namespace(temperature), slice(None, None, -1 if flip_vertical else 1)
    interfaces = hybrid_levels(half_levels, surface_pressure)
    interfaces = xp.where(
        interfaces > 0, interfaces, xp.asarray(SMALLEST_PRESSURE, interfaces.dtype)
    )
    upper, lower = interfaces[:, :-1][:, turn], interfaces[:, 1:][:, turn]
    thickness = xp.log(lower / upper)
    alpha = 1.0 - (upper / (lower - upper)) * thickness
    heat = _DRY * (temperature * (1.0 + (_VAPOR / _DRY - 1.0) * humidity))[:, turn]
    below = surface_geopotential + xp.cumsum(heat * thickness, axis=1)
    return (below - heat * alpha)[:, turn]


def geopotential_of_ifs(
    surface_geopotential: Float[Any, "batch 1 1 lat lon"],
    surface_pressure: Surface,
    temperature: Columns,
    humidity: Columns,
    half_levels: tuple[np.ndarray, np.ndarray],
) -> Columns:
    """Geopotential at the centers of levels from the top down, as IFS, m^2 / s^2."""
    # A center lies `R T_v alpha` above the lower interface of its level, with Simmons
    # and Burridge's alpha; in `geopotential` it lies as far below the upper one.
    check_interfaces("fields", temperature, half_levels)
    xp = namespace(temperature)
    interfaces = hybrid_levels(half_levels, surface_pressure)[:, 1:]
    top = xp.full_like(interfaces[:, :1], _TOP)
    upper = xp.concatenate([top, interfaces[:, :-1]], axis=1)
    thickness = xp.log(interfaces / upper)
    alpha = 1.0 - upper / (interfaces - upper) * thickness
    first = xp.full_like(top, math.log(2.0))
    alpha = xp.concatenate([first, alpha[:, 1:]], axis=1)
    heat = _DRY * temperature * (1.0 + _MOISTURE * humidity)
    up = xp.cumsum((heat * thickness)[:, ::-1], axis=1)[:, ::-1]
    below = xp.concatenate([up[:, 1:], xp.zeros_like(up[:, :1])], axis=1)
    return surface_geopotential + below + heat * alpha


def check_interfaces(
    subject: str, field: Columns, half_levels: tuple[np.ndarray, np.ndarray]
) -> None:
    """Checks that there is one more interface than there are levels of a field."""
    if len(half_levels[0]) != field.shape[1] + 1:
        raise ValueError(
            f"the coefficients have {len(half_levels[0])} interfaces, but the "
            f"{subject} {field.shape[1]} levels, which need one more; give `levels`, "
            "counted from 1"
        )


_ALPHA = LAPSE_RATE * DRY_GAS_CONSTANT / GRAVITY
_PLATEAU = 298.0  # K, largest temperature at sea level under high ground

OnPressure = Float[Any, "batch plev time lat lon"]


class ColumnState(NamedTuple):
    """Fields on hybrid levels from the top down, and at the surface."""

    temperature: Columns  # K
    geopotential: Columns  # m^2 / s^2
    surface_pressure: Surface  # Pa
    surface_geopotential: Float[Any, "batch 1 1 lat lon"]  # m^2 / s^2


def to_pressure_levels(
    fields: Sequence[Columns],
    state: ColumnState,
    levels: tuple[np.ndarray, np.ndarray],  # (a in Pa, b) at centers, from the top down
    pressures: Float[np.ndarray, " plev"],
    *,
    temp_height: float = 150.0,  # m above ground, of the level for T of the surface
) -> list[OnPressure]:
    """Fields, temperature (K) and geopotential (m^2 / s^2) on pressure levels."""
    ps = state.surface_pressure
    if len(levels[0]) != state.temperature.shape[1]:
        raise ValueError(
            f"the coefficients are of {len(levels[0])} levels, the fields have "
            f"{state.temperature.shape[1]}; give `levels`, counted from 1"
        )
    xp, target = namespace(ps), by_level(pressures, ps)
    pressure = hybrid_levels(levels, ps)
    # Linear in log(p), and constant above the top level.
    *out, t, z = (
        interpolate_columns(x, pressure, target)
        for x in (*fields, state.temperature, state.geopotential)
    )
    # Below the ground, fields keep the value of the lowest level; temperature and
    # geopotential follow Eqs. 16 and 15 of Trenberth et al.
    t_below, z_below = _below_ground(state, pressure, target, temp_height)
    below = target > ps
    return [*out, xp.where(below, t_below, t), xp.where(below, z_below, z)]


def _below_ground(
    state: ColumnState, pressure: Columns, target: Any, temp_height: float
) -> tuple[OnPressure, OnPressure]:
    """T* (1 + y + y^2/2 + y^3/6), Phi* - R T* log(p/ps) (1 + y/2 + y^2/6)."""
    xp, ps = namespace(pressure), state.surface_pressure
    # The surface temperature, from the level nearest to `temp_height` above ground.
    above = (state.geopotential - state.surface_geopotential) / GRAVITY
    nearest = xp.argmin(xp.abs(above - temp_height), axis=1, keepdims=True)
    t, p = take_levels(state.temperature, nearest), take_levels(pressure, nearest)
    t_surface = t + _ALPHA * t * (ps / p - 1.0)
    log_ratio = xp.log(target / ps)
    # The lapse rate: 0.0065 K / m below 2000 m of height, limited above (at least 0).
    height = state.surface_geopotential / GRAVITY
    t_sea = t_surface + LAPSE_RATE * height
    t_plateau = clip(t_sea, high=_PLATEAU)
    scale = GRAVITY / clip(state.surface_geopotential, 1.0)
    blended = 0.002 * ((2500.0 - height) * t_sea + (height - 2000.0) * t_plateau)
    standard = xp.full_like(t_surface, LAPSE_RATE)
    middle = xp.where(height >= 2000.0, scale * (blended - t_surface), standard)
    steep = scale * clip(t_plateau - t_surface, 0.0)
    rate = xp.where(height > 2500.0, steep, middle)
    y = rate * DRY_GAS_CONSTANT / GRAVITY * log_ratio
    t = t_surface * (1.0 + y + 0.5 * y**2 + y**3 / 6.0)
    depth = DRY_GAS_CONSTANT * t_surface * log_ratio * (1.0 + 0.5 * y + y**2 / 6.0)
    return t, state.surface_geopotential - depth


_WARM, _COLD = 290.5, 255.0  # K


def mean_sea_level_pressure(
    surface_pressure: Surface,
    temperature: Surface,  # near the surface, K
    surface_geopotential: Float[Any, "batch 1 1 lat lon"],
) -> Surface:
    """Computes pressure at mean sea level, Pa."""
    # ps exp(x (1 - alpha x / 2 + (alpha x)^2 / 3)) with x = Phi / (R T), and ps where
    # the ground is at sea level. The lapse rate alpha and T are limited where it is
    # warm (290.5 K) or cold (255 K).
    xp, t = namespace(temperature), temperature
    height = surface_geopotential / GRAVITY
    warm = t > _WARM
    warm_below = ~warm & (t + LAPSE_RATE * height > _WARM)
    cold = (t < _COLD) & ~warm_below & ~warm
    limited = DRY_GAS_CONSTANT * (_WARM - t) / clip(surface_geopotential, 1e-6)
    alpha = xp.where(warm_below, limited, xp.asarray(_ALPHA, t.dtype))
    alpha = xp.where(warm, xp.zeros_like(alpha), alpha)
    t = xp.where(warm, 0.5 * (_WARM + t), xp.where(cold, 0.5 * (_COLD + t), t))
    x = surface_geopotential / (DRY_GAS_CONSTANT * clip(t, 1.0))
    factor = xp.exp(x * (1.0 - 0.5 * alpha * x + (alpha * x) ** 2 / 3.0))
    flat = xp.abs(height) < 1e-4
    return xp.where(flat, surface_pressure, surface_pressure * factor)
