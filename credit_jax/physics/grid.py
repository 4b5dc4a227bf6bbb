"""Areas of grid cells."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from credit_jax.physics.constants import EARTH_RADIUS


def cell_areas(
    longitude: Float[np.ndarray, "lat lon"], latitude: Float[np.ndarray, "lat lon"]
) -> Float[np.ndarray, "lat lon"]:
    """Areas |R^2 d(sin latitude) d(longitude)| of grid cells, in float64.

    Differences are central, and one-sided of second order at the edges.

    Args:
        longitude: degrees east; a step across 360 degrees is wrapped.
        latitude: degrees north.

    Returns:
        (lat, lon) m^2.

    Differs from CREDIT: float64. In float32 the difference of sin(latitude) cancels
    near the poles: an error of 0.6 % in the area of the last row at 0.25 degrees.
    """
    sine = np.sin(np.deg2rad(np.asarray(latitude, np.float64)))
    angle = np.deg2rad(np.asarray(longitude, np.float64))
    d_phi = np.gradient(sine, axis=0, edge_order=2)
    d_lambda = np.gradient(angle, axis=1, edge_order=2)
    d_lambda = (d_lambda + np.pi) % (2 * np.pi) - np.pi
    return np.abs(EARTH_RADIUS**2 * d_phi * d_lambda)


def area_weights(
    longitude: Float[np.ndarray, "lat lon"], latitude: Float[np.ndarray, "lat lon"]
) -> Float[np.ndarray, "lat lon"]:
    """`cell_areas` divided by their mean, dimensionless."""
    areas = cell_areas(longitude, latitude)
    return areas / areas.mean()
