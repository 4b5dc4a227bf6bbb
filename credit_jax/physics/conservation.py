"""Corrections that close the global budgets of dry air, water and energy.

All are ratios of global integrals, area-weighted means here, which have the same ratio.
Differs from CREDIT in rounding: what must vanish is subtracted in each column before
the mean is taken, not after.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from credit_jax.fields import FieldContext
from credit_jax.physics.arrays import namespace
from credit_jax.physics.columns import Levels, Surface, Values
from credit_jax.physics.constants import (
    GRAVITY,
    HEAT_CAPACITY_DRY,
    HEAT_CAPACITY_VAPOR,
    LATENT_HEAT,
    WATER_DENSITY,
)
from credit_jax.physics.rows import global_mean, own_rows


@dataclass(frozen=True, eq=False)
class PhysicsGrid:
    """What global integrals need.

    Attributes:
        levels: of the columns.
        weights: (lat, lon) area of each cell, mean 1.
    """

    levels: Levels
    weights: Float[np.ndarray, "lat lon"]

    def mean(self, values: Any, context: FieldContext | None) -> Any:
        """Area-weighted global mean of each sample, (batch, level, time, 1, 1)."""
        return global_mean(values, self.weights, context)


class Moisture(NamedTuple):
    """Where the water and the dry air of a column are.

    Attributes:
        humidity: specific total water, kg / kg.
        pressure: of the surface, Pa.
    """

    humidity: Values
    pressure: Surface


class Air(NamedTuple):
    """What the energy of a column is made of.

    Attributes:
        temperature: K.
        humidity: specific total water, kg / kg.
        u, v: wind, m / s.
        pressure: of the surface, Pa.
    """

    temperature: Values
    humidity: Values
    u: Values
    v: Values
    pressure: Surface


def fix_dry_mass(
    grid: PhysicsGrid, before: Moisture, after: Moisture, context: FieldContext | None
) -> Surface:
    """Surface pressure with which the mass of dry air is that of before.

    ps (M(before) - M_a) / M_b, where the mass afterwards is M_a + M_b, of the
    thicknesses da and db ps.

    Args:
        grid: with hybrid levels.
        before, after: states at both ends of the step.
        context: see `physics.rows`.

    Returns:
        Pa, of the state afterwards.
    """
    dry, levels = 1 - after.humidity, grid.levels
    lost = levels.integral(1 - before.humidity, before.pressure)
    lost = lost - levels.integral(dry, after.pressure)
    scaled = levels.surface_part(dry) * after.pressure
    ratio = grid.mean(lost, context) / grid.mean(scaled, context)
    return after.pressure * (1 + ratio)


def fix_dry_mass_by_humidity(
    grid: PhysicsGrid,
    before: Values,
    after: Values,
    num_fixed: int,
    context: FieldContext | None,
) -> Values:
    """Humidity with which the mass of dry air is that of before, on pressure levels.

    1 - (1 - q) (M(before) - M_upper) / M_lower on the lower levels.

    Args:
        grid: with pressure levels.
        before, after: specific total water, kg / kg.
        num_fixed: levels to correct, from the surface (CREDIT's fix_level_num).
        context: see `physics.rows`.

    The trapezoidal sum over the upper levels includes the first corrected one, as in
    CREDIT: that budget closes up to the change of half a layer. Midpoint sums close.
    """
    levels = grid.levels
    first = len(levels.a) - num_fixed + 1
    start = first if levels.midpoint else first - 1
    # Pressure levels have no surface pressure.
    none = namespace(after).zeros_like(after[:, :1])
    lower = levels.integral(1 - after, none, start)
    lost = levels.integral(1 - before, none) - lower
    lost = lost - levels.integral(1 - after, none, 0, first)
    ratio = grid.mean(lost, context) / grid.mean(lower, context)
    fixed = after[:, start:] - (1 - after[:, start:]) * ratio
    return namespace(after).concatenate([after[:, :start], fixed], axis=1)


def fix_precipitation(
    grid: PhysicsGrid,
    before: Moisture,
    after: Moisture,
    precipitation: Surface,
    evaporation: Surface,
    seconds: float,
    context: FieldContext | None,
) -> Surface:
    """Precipitation that balances evaporation and the change of column water.

    P (-dW/dt - E) / P, each the global integral of a flux in kg / m^2 / s.

    Args:
        grid: levels and areas.
        before, after: states at both ends of the step.
        precipitation, evaporation: m of water in the step, CREDIT's signs.
        seconds: length of the step.
        context: see `physics.rows`.

    Returns:
        m of water in the step.
    """
    water = grid.levels.integral(after.humidity, after.pressure)
    water = water - grid.levels.integral(before.humidity, before.pressure)
    flux = WATER_DENSITY / seconds
    needed = -water / GRAVITY / seconds - evaporation * flux
    ratio = grid.mean(needed, context) / grid.mean(precipitation * flux, context)
    return precipitation * ratio


def fix_energy(
    grid: PhysicsGrid,
    before: Air,
    after: Air,
    surface_geopotential: Float[np.ndarray, "global_lat lon"],
    net_flux: Surface,
    seconds: float,
    context: FieldContext | None,
) -> Values:
    """Temperature with which energy changes by the fluxes at top and surface.

    T + E r / c_p, where E = c_p T + L q + Phi + (u^2 + v^2) / 2 and
    1 + r = (TE(before) + seconds flux) / TE(after), TE the global integral of E.

    Args:
        grid: levels and areas.
        before, after: states at both ends of the step.
        surface_geopotential: m^2 / s^2, of the whole grid.
        net_flux: into the air, at the top less at the surface.
        seconds: length of the step.
        context: see `physics.rows`.

    Returns:
        K, of the state afterwards.
    """
    ground = own_rows(surface_geopotential, after.temperature, context)
    energy, capacity = _energy(after, ground)
    total = grid.levels.integral(energy, after.pressure) / GRAVITY
    start = grid.levels.integral(_energy(before, ground)[0], before.pressure) / GRAVITY
    missing = start - total + seconds * net_flux
    ratio = grid.mean(missing, context) / grid.mean(total, context)
    return after.temperature + energy * ratio / capacity


def _energy(air: Air, ground: Any) -> tuple[Values, Values]:
    """J / kg of each level, and the heat capacity of moist air."""
    capacity = (1 - air.humidity) * HEAT_CAPACITY_DRY
    capacity = capacity + air.humidity * HEAT_CAPACITY_VAPOR
    kinetic = 0.5 * (air.u**2 + air.v**2)
    rest = LATENT_HEAT * air.humidity + ground + kinetic
    return capacity * air.temperature + rest, capacity
