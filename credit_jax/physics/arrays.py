"""Constants, and operations on numpy or JAX arrays, with torch's gradients."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped


def namespace(*arrays: Any) -> ModuleType:
    """`jax.numpy` if any of the arrays is JAX's, else `numpy`."""
    return jnp if any(isinstance(x, jax.Array) for x in arrays) else np


def clip(x: Any, low: float | None = None, high: float | None = None) -> Any:
    """Limits values to [low, high]; the gradient of a value on a bound is 1.

    That is the gradient of torch's `clamp`; `jnp.clip` halves it.
    """
    xp = namespace(x)
    if low is not None:
        x = xp.where(x < low, xp.asarray(low, x.dtype), x)
    if high is not None:
        x = xp.where(x > high, xp.asarray(high, x.dtype), x)
    return x


def by_level(values: Any, like: Any) -> Any:
    """Reshapes (level,) to (1, level, 1, 1, 1) in dtype and namespace of `like`."""
    xp = namespace(like)
    return xp.asarray(values, like.dtype).reshape(1, -1, 1, 1, 1)


def take_levels(
    x: Shaped[Any, "batch level time lat lon"],
    index: Shaped[Any, "batch chosen time lat lon"],
) -> Shaped[Any, "batch chosen time lat lon"]:
    """Selects levels by an index that may differ from column to column."""
    return namespace(x).take_along_axis(x, index, axis=1)


EARTH_RADIUS = 6371000.0  # m
DRY_GAS_CONSTANT = 287.05  # J / kg / K
GRAVITY = 9.80665  # m / s^2
WATER_DENSITY = 1000.0  # kg / m^3
LATENT_HEAT = 2.501e6  # J / kg, of vaporization
HEAT_CAPACITY_DRY = 1004.64  # J / kg / K, at constant pressure
HEAT_CAPACITY_VAPOR = 1810.0  # J / kg / K
LAPSE_RATE = 0.0065  # K / m, of the standard atmosphere
STANDARD_PRESSURE = 101325.0  # Pa
SECONDS_PER_HOUR = 3600
