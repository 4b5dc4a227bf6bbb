"""Operations on numpy or JAX arrays and on fields split by rows; constants.

`context` is None for whole numpy or JAX arrays, and the `FieldContext` of a step for
local rows inside `shard_map`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Shaped

from credit_jax.named_fields import FieldContext


def namespace(*arrays: Any) -> ModuleType:
    """`jax.numpy` if any of the arrays is JAX's, else `numpy`."""
    return jnp if any(isinstance(x, jax.Array) for x in arrays) else np


def clip(x: Any, low: float | None = None, high: float | None = None) -> Any:
    """Limits values to [low, high]; the gradient of a value on a bound is 1."""
    # The gradient is that of torch's `clamp`; `jnp.clip` halves it on a bound.
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


def hybrid_levels(levels: tuple[Any, Any], surface_pressure: Any) -> Any:
    """Pressure a + b ps of hybrid levels, Pa."""
    a, b = (by_level(values, surface_pressure) for values in levels)
    return a + b * surface_pressure


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


Array5 = Shaped[Any, "batch level time rows lon"]


def local_rows(
    per_row: Shaped[np.ndarray, "lat columns"],  # of all rows; columns: lon or 1
    like: Array5,
    context: FieldContext | None,
) -> Shaped[Any, "1 1 1 rows columns"]:
    """Returns the local rows of a constant field, 0 in padding rows."""
    lat = like.shape[-2] if context is None else context.reducer.rows.size
    if per_row.shape[0] != lat:
        raise ValueError(
            f"a constant by row has {per_row.shape[0]} rows, the fields have {lat}; "
            "give the file of the fields' own grid"
        )
    if context is None:
        rows = namespace(like).asarray(per_row, like.dtype)
    else:
        rows = context.local_rows(jnp.asarray(per_row, like.dtype))
    return rows[None, None, None]


def fill_padding(x: Array5, value: float, context: FieldContext | None) -> Array5:
    """Replaces the values in padding rows by `value`."""
    if context is None or not context.reducer.rows.has_padding:
        return x
    # With a finite value for which all operations are finite, padding rows do not make
    # NaN in a gradient, as 0 times infinity.
    real = context.reducer.rows.real_rows().reshape(1, 1, 1, -1, 1)
    return jnp.where(real, x, jnp.asarray(value, x.dtype))


def global_mean(
    values: Array5,  # finite in padding rows
    weights: np.ndarray | None,  # (lat, lon) with mean 1; None is 1 everywhere
    context: FieldContext | None,
) -> Shaped[Any, "batch level time 1 1"]:
    """Weighted mean over the grid for each sample, level and time; uses one psum."""
    if weights is not None:
        values = values * local_rows(weights, values, context)
    if context is None:
        return values.mean(axis=(-2, -1), keepdims=True)
    return context.reducer.sample_mean(values)[..., None, None]


def all_rows(
    x: Array5, context: FieldContext | None
) -> Shaped[Any, "batch level time lat lon"]:
    """All-gathers a field: all latitudes, invariant over domain shards."""
    return x if context is None else context.gather_rows(x)


def num_rows(x: Array5, context: FieldContext | None) -> int:
    """Number of latitudes of the whole grid."""
    return x.shape[-2] if context is None else context.reducer.rows.size
