"""Interpolation from hybrid to pressure levels, with values below the ground.

Trenberth, Berry and Buja (1993), as in CREDIT.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from credit_jax.physics.arrays import (
    DRY_GAS_CONSTANT,
    GRAVITY,
    LAPSE_RATE,
    by_level,
    clip,
    hybrid_levels,
    namespace,
    take_levels,
)
from credit_jax.physics.interpolation import interpolate_columns

_ALPHA = LAPSE_RATE * DRY_GAS_CONSTANT / GRAVITY
_PLATEAU = 298.0  # K, largest temperature at sea level under high ground

Columns = Float[Any, "batch level time lat lon"]
Surface = Float[Any, "batch 1 time lat lon"]
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
    levels: tuple[np.ndarray, np.ndarray],
    pressures: Float[np.ndarray, " plev"],
    *,
    temp_height: float = 150.0,
) -> list[OnPressure]:
    """Interpolates fields, temperature and geopotential to pressure levels.

    Linear in log(p), and constant above the top level. Below the ground, fields keep
    the value of the lowest level; temperature and geopotential follow Eqs. 16 and 15 of
    Trenberth et al.

    Args:
        levels: coefficients (a in Pa, b) at the centers of levels, from the top down.
        temp_height: height above the ground, m; the surface temperature is derived from
            the nearest level.

    Returns:
        The fields, then temperature (K) and geopotential (m^2 / s^2), on `pressures`.
    """
    ps = state.surface_pressure
    if len(levels[0]) != state.temperature.shape[1]:
        raise ValueError(
            f"the coefficients are of {len(levels[0])} levels, the fields have "
            f"{state.temperature.shape[1]}; give `levels`, counted from 1"
        )
    xp, target = namespace(ps), by_level(pressures, ps)
    pressure = hybrid_levels(levels, ps)
    *out, t, z = (
        interpolate_columns(x, pressure, target)
        for x in (*fields, state.temperature, state.geopotential)
    )
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
    temperature: Surface,
    surface_geopotential: Float[Any, "batch 1 1 lat lon"],
) -> Surface:
    """Computes pressure at mean sea level, Pa.

    It is `ps exp(x (1 - alpha x / 2 + (alpha x)^2 / 3))` with x = Phi / (R T), and ps
    where the ground is at sea level. The lapse rate alpha and T are limited where it is
    warm (290.5 K) or cold (255 K).

    Args:
        temperature: near the surface, K.
    """
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
