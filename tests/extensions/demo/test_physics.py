"""Sunlight and moisture against published values."""

import jax.numpy as jnp
import numpy as np

from credit_jax.extensions.demo import physics


def test_solar_irradiance():
    """Daily means against Hartmann (1994), fig. 2.6, and noon at the equator."""
    hours = np.arange(0, 24, 0.25)[:, None, None] / 24.0
    latitude = np.radians([[-90.0, 0.0, 90.0]])[..., None]
    days = physics.solar_irradiance(172.0 + hours, latitude, np.zeros((1, 1, 1)))
    south, equator, north = days.mean(axis=0).ravel()
    assert south == 0
    assert np.isclose(north, 525, rtol=0.01)
    assert np.isclose(equator, 385, rtol=0.01)
    noon = physics.solar_irradiance(79.5, np.zeros(1), np.zeros(1))
    assert np.isclose(noon[0], 1361, rtol=0.01)


def test_saturation():
    """Bolton's formula: 3.8 g/kg at 0 C and 14.7 g/kg at 20 C, 1000 hPa."""
    q = physics.saturation_specific_humidity(
        jnp.array([273.15, 293.15]), jnp.array([1e5, 1e5])
    )
    assert np.allclose(q, [0.00381, 0.0147], rtol=0.01)
