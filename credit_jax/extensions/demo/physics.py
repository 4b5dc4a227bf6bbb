"""Physics of the demo climate: solar radiation, moisture, mountains, land-sea mask.

Pure functions of arrays that broadcast, in SI units, which `forcing` uses.
"""

from types import ModuleType
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Field: TypeAlias = Any  # a numpy or JAX array
Days: TypeAlias = Any  # the same, or a number

SOLAR_CONSTANT = 1361.0  # W m-2, Kopp and Lean (2011), doi:10.1029/2010GL045777
OBLIQUITY = 23.44  # degrees, Earth's axial tilt
ECCENTRICITY = 0.0167  # of Earth's orbit
YEAR_DAYS = 365.2422  # tropical year
EQUINOX_DAY = 79.0  # days after 1 January 00 UTC, about 20 March
PERIHELION_DAY = 3.0  # days after 1 January 00 UTC
GRAVITY = 9.80616  # m s-2, the value that dinosaur uses
DRY_AIR_GAS = 287.0  # gas constant of dry air, J kg-1 K-1
WATER_DENSITY = 1000.0  # of liquid water, kg m-3


def declination(day: Days, xp: ModuleType = np) -> Field:
    """Angle between the Sun and the equator, radians: asin(sin eps sin L)."""
    # Of the mean Sun, counted from the March equinox.
    longitude = 2.0 * np.pi * (day - EQUINOX_DAY) / YEAR_DAYS
    return xp.arcsin(np.sin(np.radians(OBLIQUITY)) * xp.sin(longitude))


def cos_zenith(
    day: Days, latitude: Field, longitude: Field, xp: ModuleType = np
) -> Field:
    """Cosine of the solar zenith angle, zero at night, of days and radians."""
    # Hartmann (1994), Global Physical Climatology, eq. 2.15. The hour angle is 0 at
    # local noon.
    sun = declination(day, xp)
    hour_angle = 2.0 * np.pi * (day % 1.0) + longitude - np.pi
    mu = xp.sin(latitude) * xp.sin(sun)
    mu = mu + xp.cos(latitude) * xp.cos(sun) * xp.cos(hour_angle)
    return xp.maximum(mu, 0.0)


def solar_irradiance(
    day: Days, latitude: np.ndarray, longitude: np.ndarray
) -> np.ndarray:
    """Incoming solar radiation at the top of the atmosphere, W m-2 (`tsi`)."""
    # The inverse square of the distance to first order in the eccentricity (Hartmann
    # 1994, section 2.6).
    orbit = np.cos(2.0 * np.pi * (day - PERIHELION_DAY) / YEAR_DAYS)
    distance = 1.0 + 2.0 * ECCENTRICITY * orbit
    return SOLAR_CONSTANT * distance * cos_zenith(day, latitude, longitude)


def saturation_specific_humidity(
    temperature: Float[Array, "..."], pressure: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Specific humidity at saturation over water, kg kg-1, of K and Pa."""
    celsius = temperature - 273.15
    # Bolton (1980), eq. 10.
    vapor = 611.2 * jnp.exp(17.67 * celsius / (temperature - 29.65))
    return 0.622 * vapor / jnp.maximum(pressure - 0.378 * vapor, vapor)


def _bump(
    latitude: np.ndarray,
    longitude: np.ndarray,
    center: tuple[float, float],
    width: tuple[float, float],
) -> np.ndarray:
    """exp(-(dlat/width)^2 - (dlon/width)^2), degrees, longitude periodic."""
    away = (np.degrees(longitude) - center[1] + 180.0) % 360.0 - 180.0
    north = (np.degrees(latitude) - center[0]) / width[0]
    return np.exp(-(north**2) - (away / width[1]) ** 2)


def mountain_height(latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """Height in m of two smooth ranges where the Rockies and Tibet are, of radians."""
    # They are low so that weather, not orography, dominates surface pressure.
    rockies = 500.0 * _bump(latitude, longitude, (45.0, 250.0), (18.0, 16.0))
    tibet = 800.0 * _bump(latitude, longitude, (35.0, 90.0), (14.0, 22.0))
    return rockies + tibet


def land_mask(latitude: np.ndarray, longitude: np.ndarray) -> np.ndarray:
    """Mask with 1 on three idealized continents and 0 on sea, of radians."""
    centers = [
        ((45.0, 255.0), (25.0, 35.0)),
        ((45.0, 80.0), (28.0, 60.0)),
        ((-10.0, 25.0), (28.0, 22.0)),
    ]
    bumps = [_bump(latitude, longitude, *center) for center in centers]
    return (np.sum(bumps, axis=0) > 0.4).astype(np.float32)
