"""Grid, levels, units, mountains and continents of the demo climate."""

import dataclasses
from typing import Any

import numpy as np
from dinosaur import (
    coordinate_systems,
    primitive_equations,
    scales,
    sigma_coordinates,
    spherical_harmonic,
    units,
)
from jaxtyping import Float

from credit_jax.extensions.demo import physics

SpectralState = primitive_equations.State

NUM_LEVELS = 8
REFERENCE_PRESSURE = 1e5  # Pa, p0 of Held and Suarez (1994)
REFERENCE_TEMPERATURE = 288.0  # K, of the semi-implicit scheme; the state holds T - T0


@dataclasses.dataclass(frozen=True)
class Discretization:
    """Grid, levels, unit scales and constant fields.

    Arrays are in dinosaur's order (level, lon, lat), with latitudes from south to
    north. dinosaur computes in nondimensional units.

    Attributes:
        coords: spherical harmonics and sigma levels.
        levels: the sigma levels of `coords`, top first.
        specs: nondimensional physical constants.
        kelvin, pascal, second, meter: one SI unit in nondimensional units.
        longitude, latitude: (lon, lat) radians.
        land: (lon, lat), 1 on land and 0 on sea.
        height: (lon, lat) height of the surface in m, spectrally truncated.
    """

    coords: coordinate_systems.CoordinateSystem
    levels: sigma_coordinates.SigmaCoordinates
    specs: Any
    kelvin: float
    pascal: float
    second: float
    meter: float
    longitude: Float[np.ndarray, "lon lat"]
    latitude: Float[np.ndarray, "lon lat"]
    land: Float[np.ndarray, "lon lat"]
    height: Float[np.ndarray, "lon lat"]

    @property
    def sigma(self) -> Float[np.ndarray, "level 1 1"]:
        """Pressure over surface pressure at the centers of the levels, top first."""
        return self.levels.centers[:, None, None]

    @property
    def thickness(self) -> Float[np.ndarray, "level 1 1"]:
        """Thickness of the levels in sigma, with sum 1."""
        return self.levels.layer_thickness[:, None, None]

    @property
    def grid(self) -> spherical_harmonic.Grid:
        """Transforms between grid points ("nodal") and harmonics ("modal")."""
        return self.coords.horizontal


def discretize(truncation: str) -> Discretization:
    """Builds the discretization of a spectral truncation.

    Args:
        truncation: "T21" (32 x 64 points) or "T42" (64 x 128), on a Gaussian grid.
    """
    specs = units.SimUnits.from_si()
    grid = getattr(spherical_harmonic.Grid, truncation)(
        radius=specs.radius,
        spherical_harmonics_impl=spherical_harmonic.FastSphericalHarmonics,
    )
    levels = sigma_coordinates.SigmaCoordinates.equidistant(NUM_LEVELS)
    lon, sin_lat = grid.nodal_mesh
    lat = np.arcsin(sin_lat)
    rough = physics.mountain_height(lat, lon).astype(np.float32)
    one = specs.nondimensionalize
    return Discretization(
        coords=coordinate_systems.CoordinateSystem(grid, levels),
        levels=levels,
        specs=specs,
        kelvin=float(one(1 * scales.units.degK)),
        pascal=float(one(1 * scales.units.pascal)),
        second=float(one(1 * scales.units.s)),
        meter=float(one(1 * scales.units.m)),
        longitude=lon,
        latitude=lat,
        land=physics.land_mask(lat, lon),
        height=np.asarray(grid.to_nodal(grid.to_modal(rough))),
    )
