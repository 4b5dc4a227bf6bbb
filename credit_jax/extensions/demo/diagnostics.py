"""Computes the fields of the data set from a state of the dynamical core."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from dinosaur import spherical_harmonic
from jaxtyping import Array, Float

from credit_jax.extensions.demo import physics
from credit_jax.extensions.demo.forcing import (
    REFERENCE_TEMPERATURE,
    Discretization,
    SpectralState,
)


def fields_of(disc: Discretization, state: SpectralState) -> dict[str, Array]:
    """Computes U, V, T, Q (level, lat, lon) and SP, V500, Z500 (lat, lon), north first.

    Units are m s-1 (U, V, V500), K, kg kg-1, Pa and m2 s-2 (Z500). Negative Q, which
    results from spectral truncation, is set to 0.
    """
    nodal, speed = disc.grid.to_nodal, disc.meter / disc.second
    u, v = spherical_harmonic.vor_div_to_uv_nodal(
        disc.grid, state.vorticity, state.divergence
    )
    variation = nodal(state.temperature_variation) / disc.kelvin
    temperature = variation + REFERENCE_TEMPERATURE
    surface = jnp.exp(nodal(state.log_surface_pressure))[0] / disc.pascal
    native = {
        "U": u / speed,
        "V": v / speed,
        "T": temperature,
        "Q": jnp.maximum(nodal(state.tracers["q"]), 0.0),
        "SP": surface,
        "V500": at_500_hpa(disc, v / speed, surface),
        "Z500": at_500_hpa(disc, geopotential(disc, temperature), surface),
    }
    return {name: to_north_first(field) for name, field in native.items()}


def geopotential(
    disc: Discretization, temperature: Float[Array, "level lon lat"]
) -> Float[Array, "level lon lat"]:
    """Computes the geopotential of the levels in m2 s-2, by hydrostatic balance.

    It is g z + R T_N ln(1 / sigma_N) at the lowest level N, and increases from level
    k + 1 to k by R (T_k + T_k+1) / 2 ln(sigma_k+1 / sigma_k).

    Args:
        disc: grid, levels and units.
        temperature: K.
    """
    log_sigma = np.log(disc.levels.centers)
    gas = physics.DRY_AIR_GAS
    lowest = physics.GRAVITY * disc.height - gas * temperature[-1] * log_sigma[-1]
    between = 0.5 * (temperature[1:] + temperature[:-1])
    steps = gas * between * np.diff(log_sigma)[:, None, None]
    above = jnp.cumsum(steps[::-1], axis=0)[::-1]
    return jnp.concatenate([lowest[None] + above, lowest[None]])


def at_500_hpa(
    disc: Discretization,
    field: Float[Array, "level lon lat"],
    surface_pressure: Float[Array, "lon lat"],
) -> Float[Array, "lon lat"]:
    """Interpolates a field to 500 hPa, linearly in log(pressure).

    It is constant beyond the first and last level.

    Args:
        disc: grid, levels and units.
        field: any quantity on sigma levels.
        surface_pressure: Pa.
    """
    log_sigma = np.log(disc.levels.centers)
    gaps = np.diff(log_sigma)
    below = np.append(gaps, np.inf)[:, None, None]
    above = np.insert(gaps, 0, np.inf)[:, None, None]
    offset = jnp.log(5e4 / surface_pressure)[None] - log_sigma[:, None, None]
    distance = jnp.where(offset > 0, offset / below, -offset / above)
    return jnp.sum(jnp.clip(1.0 - distance, 0.0, 1.0) * field, axis=0)


def to_north_first(field: Any) -> Any:
    """Converts (..., lon, lat), south first, to (..., lat, lon), north first."""
    return field.swapaxes(-1, -2)[..., ::-1, :]
