"""Corrections that close the global budgets of dry air, water and energy.

All are ratios of global integrals, computed as ratios of area-weighted means. They
differ from CREDIT in rounding: the difference of two budgets is taken in each column,
before the mean, not after.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from credit_jax.named_fields import FieldContext
from credit_jax.named_fields.coordinates import (
    UNKNOWN,
    GridCoordinates,
    indices_of,
    on_grid,
    take_indices,
)
from credit_jax.physics.arrays import (
    EARTH_RADIUS,
    GRAVITY,
    HEAT_CAPACITY_DRY,
    HEAT_CAPACITY_VAPOR,
    LATENT_HEAT,
    WATER_DENSITY,
    by_level,
    global_mean,
    local_rows,
    namespace,
)

PerPoint = Float[np.ndarray, "lat lon"]

LevelFields = Float[Any, "batch level time lat lon"]
Layers = Float[Any, "batch layer time lat lon"]
Surface = Float[Any, "batch 1 time lat lon"]


@dataclass(frozen=True, eq=False)
class VerticalLevels:
    """Levels of pressure p = a + b ps; b is 0 for pressure levels."""

    a: Float[np.ndarray, " n"]  # (n,) Pa
    b: Float[np.ndarray, " n"]  # (n,) dimensionless
    # If True, fields are means of the n - 1 layers between these pressures; else they
    # are values at the n pressures, and integrals are trapezoidal.
    midpoint: bool
    origin: str = "levels"  # file and names of a and b, for errors
    # Numbers of the levels of fields in that file; None if it has none.
    numbers: tuple[float, ...] | None = None

    @property
    def num_levels(self) -> int:
        """Number of levels of a field."""
        return len(self.a) - 1 if self.midpoint else len(self.a)

    def thickness(self, surface_pressure: Surface) -> Layers:
        """Thickness of each of the n - 1 layers, Pa."""
        # Differs from CREDIT: da + db ps, not the difference of two rounded pressures.
        layer = by_level(np.diff(self.b), surface_pressure) * surface_pressure
        return layer + by_level(np.diff(self.a), surface_pressure)

    def integral(
        self,
        values: LevelFields,
        surface_pressure: Surface,
        start: int = 0,
        stop: int | None = None,
    ) -> Surface:
        """Integral by pressure (Pa) over the levels start, ..., stop - 1."""
        layers, index = self._layers(values, start, stop)
        return (layers * self.thickness(surface_pressure)[:, index]).sum(
            axis=1, keepdims=True
        )

    def surface_part(self, values: LevelFields) -> Surface:
        """Derivative of the integral by surface pressure: thicknesses are db."""
        layers, _ = self._layers(values, 0, None)
        return (layers * by_level(np.diff(self.b), values)).sum(axis=1, keepdims=True)

    def _layers(
        self, values: LevelFields, start: int, stop: int | None
    ) -> tuple[Layers, slice]:
        """Layer means of `values`, and the indices of their layers."""
        if values.shape[1] != self.num_levels:
            raise ValueError(
                f"{self.origin}: {len(self.a)} values, which with midpoint: "
                f"{str(self.midpoint).lower()} are for fields of {self.num_levels} "
                f"levels; a field has {values.shape[1]}"
            )
        values = values[:, start:stop]
        if self.midpoint:
            return values, slice(start, stop)
        stop = self.num_levels if stop is None else min(stop, self.num_levels)
        return 0.5 * (values[:, :-1] + values[:, 1:]), slice(start, stop - 1)


@dataclass(frozen=True, eq=False)
class PhysicsGrid:
    """Levels and cell areas for global integrals."""

    levels: VerticalLevels  # vertical levels of the fields
    weights: PerPoint  # (lat, lon) area of each cell, with mean 1
    # Latitudes and longitudes of the file, degrees, and its pressure levels; those that
    # are known.
    axes: GridCoordinates = UNKNOWN

    def at(self, data: GridCoordinates) -> PhysicsGrid:
        """Returns the grid with rows and columns in the order of the data."""
        axes = self.axes
        weights = on_grid(self.weights, axes, data)
        order = indices_of(data.levels, axes.levels, "level", axes.where, data.where)
        a, b = (take_indices(x, order, 0) for x in (self.levels.a, self.levels.b))
        levels = replace(self.levels, a=a, b=b)
        grid = GridCoordinates(
            data.latitude or axes.latitude,
            data.longitude or axes.longitude,
            axes.levels and (data.levels or axes.levels),
            axes.where,
        )
        return replace(self, levels=levels, weights=weights, axes=grid)

    def mean(self, values: Any, context: FieldContext | None) -> Any:
        """Area-weighted global mean of each sample, (batch, level, time, 1, 1)."""
        return global_mean(values, self.weights, context)


class Moisture(NamedTuple):
    """The fields that determine the water and the dry air of a column."""

    humidity: LevelFields  # specific total water, kg / kg
    pressure: Surface  # surface pressure, Pa


class Air(NamedTuple):
    """The fields that determine the energy of a column."""

    temperature: LevelFields  # K
    humidity: LevelFields  # specific total water, kg / kg
    # Wind, m / s.
    u: LevelFields
    v: LevelFields
    pressure: Surface  # surface pressure, Pa


def fix_dry_mass(
    grid: PhysicsGrid, previous: Moisture, after: Moisture, context: FieldContext | None
) -> Surface:
    """Returns the surface pressure that conserves the global mass of dry air, Pa."""
    # ps (M(before) - M_a) / M_b, where M_a and M_b are the parts of M(after) from the
    # layer thicknesses da and db ps.
    dry, levels = 1 - after.humidity, grid.levels
    deficit = levels.integral(1 - previous.humidity, previous.pressure)
    deficit = deficit - levels.integral(dry, after.pressure)
    scaled = levels.surface_part(dry) * after.pressure
    ratio = grid.mean(deficit, context) / grid.mean(scaled, context)
    return after.pressure * (1 + ratio)


def fix_dry_mass_by_humidity(
    grid: PhysicsGrid,
    previous: LevelFields,
    after: LevelFields,
    num_fixed: int,  # levels from the surface up, CREDIT's fix_level_num
    context: FieldContext | None,
) -> LevelFields:
    """Returns the humidity that conserves dry air on pressure levels, kg / kg."""
    # 1 - (1 - q) (M(before) - M_upper) / M_lower on the lower levels. With midpoint
    # sums the budget closes. The trapezoidal sum over the upper levels includes the
    # first corrected one, as in CREDIT, so it closes up to the change of half a layer.
    levels = grid.levels
    first = len(levels.a) - num_fixed + 1
    start = first if levels.midpoint else first - 1
    # The thickness of pressure levels does not depend on surface pressure.
    none = namespace(after).zeros_like(after[:, :1])
    lower = levels.integral(1 - after, none, start)
    deficit = levels.integral(1 - previous, none) - lower
    deficit = deficit - levels.integral(1 - after, none, 0, first)
    ratio = grid.mean(deficit, context) / grid.mean(lower, context)
    fixed = after[:, start:] - (1 - after[:, start:]) * ratio
    return namespace(after).concatenate([after[:, :start], fixed], axis=1)


def fix_precipitation(
    grid: PhysicsGrid,
    previous: Moisture,
    after: Moisture,
    # Both in m of water in the step, with CREDIT's signs.
    precipitation: Surface,
    evaporation: Surface,
    seconds: float,
    context: FieldContext | None,
) -> Surface:
    """Precipitation that balances evaporation and the change of column water, m."""
    # P <-dW/dt - E> / <P>, where <> is a global mean of fluxes in kg / m^2 / s.
    water = grid.levels.integral(after.humidity, after.pressure)
    water = water - grid.levels.integral(previous.humidity, previous.pressure)
    flux = WATER_DENSITY / seconds
    needed = -water / GRAVITY / seconds - evaporation * flux
    ratio = grid.mean(needed, context) / grid.mean(precipitation * flux, context)
    return precipitation * ratio


def fix_energy(
    grid: PhysicsGrid,
    previous: Air,
    after: Air,
    surface_geopotential: Float[np.ndarray, "global_lat lon"],  # m^2 / s^2
    net_flux: Surface,  # into the air from the top and the surface, W / m^2
    seconds: float,
    context: FieldContext | None,
) -> LevelFields:
    """The temperature for which energy changes by top and surface fluxes, K."""
    ground = local_rows(surface_geopotential, after.temperature, context)
    # T + E r / c_p, where E = c_p T + L q + Phi + (u^2 + v^2) / 2, TE is the global
    # integral of E, and 1 + r = (TE(before) + seconds flux) / TE(after).
    energy, capacity = _energy(after, ground)
    total = grid.levels.integral(energy, after.pressure) / GRAVITY
    start = (
        grid.levels.integral(_energy(previous, ground)[0], previous.pressure) / GRAVITY
    )
    missing = start - total + seconds * net_flux
    ratio = grid.mean(missing, context) / grid.mean(total, context)
    return after.temperature + energy * ratio / capacity


def _energy(air: Air, ground: Any) -> tuple[LevelFields, LevelFields]:
    """Energy of each level, J / kg, and heat capacity of moist air, J / kg / K."""
    capacity = (1 - air.humidity) * HEAT_CAPACITY_DRY
    capacity = capacity + air.humidity * HEAT_CAPACITY_VAPOR
    kinetic = 0.5 * (air.u**2 + air.v**2)
    remainder = LATENT_HEAT * air.humidity + ground + kinetic
    return capacity * air.temperature + remainder, capacity


def cell_areas(longitude: PerPoint, latitude: PerPoint) -> PerPoint:
    """Areas |R^2 d(sin latitude) d(longitude)| of grid cells, m^2."""
    # Differs from CREDIT: float64. In float32 the difference of sin(latitude) cancels
    # near the poles: an error of 0.6 % in the area of the last row at 0.25 degrees.
    sine = np.sin(np.deg2rad(np.asarray(latitude, np.float64)))
    angle = np.deg2rad(np.asarray(longitude, np.float64))
    # Central differences, one-sided of second order at the edges.
    d_phi = np.gradient(sine, axis=0, edge_order=2)
    d_lambda = np.gradient(angle, axis=1, edge_order=2)
    # A step across 360 degrees is wrapped.
    d_lambda = (d_lambda + np.pi) % (2 * np.pi) - np.pi
    return np.abs(EARTH_RADIUS**2 * d_phi * d_lambda)


def area_weights(longitude: PerPoint, latitude: PerPoint) -> PerPoint:
    """`cell_areas` divided by their mean, dimensionless."""
    areas = cell_areas(longitude, latitude)
    return areas / areas.mean()
