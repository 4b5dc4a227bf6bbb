"""Geopotential of model levels, by the hydrostatic equation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.physics.arrays import hybrid_levels, namespace
from credit_jax.physics.interpolation import SMALLEST_PRESSURE

# Gas constants of CREDIT's geopotential.py; `physics.arrays` has other values.
_DRY, _VAPOR = 287.06, 461.51  # J / kg / K
# Of CREDIT's interp.py: factor of humidity in the virtual temperature, and the pressure
# (Pa) that stands for the top of the atmosphere, as in ECMWF's scripts for IFS.
_MOISTURE, _TOP = 0.609133, 0.1

Columns = Float[Any, "batch level time lat lon"]
Surface = Float[Any, "batch 1 time lat lon"]


def geopotential(
    surface_geopotential: Float[Any, "batch 1 1 lat lon"],
    surface_pressure: Surface,
    temperature: Columns,
    humidity: Columns,
    half_levels: tuple[np.ndarray, np.ndarray],
    *,
    flip_vertical: bool = True,
) -> Columns:
    """Computes geopotential at the centers of hybrid levels, m^2 / s^2.

    It integrates R T_v d(log p) from the ground to the centers, with the scheme of
    Simmons and Burridge (1981).

    Args:
        surface_geopotential: (batch, 1, 1, lat, lon) m^2 / s^2.
        surface_pressure: (batch, 1, time, lat, lon) Pa.
        temperature: K.
        humidity: specific humidity, kg / kg.
        half_levels: coefficients (a in Pa, b) of the level + 1 interfaces.
        flip_vertical: whether to sum from the last level, for levels from the top down.
    """
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
    """Computes geopotential at the centers of hybrid levels as IFS does, m^2 / s^2.

    A center lies `R T_v alpha` above the lower interface of its level, with Simmons and
    Burridge's alpha; in `geopotential` it lies as far below the upper one.

    Args:
        temperature: K, from the top down.
    """
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
