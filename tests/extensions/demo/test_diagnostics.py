"""Diagnostic fields against closed forms."""

import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.extensions.demo import physics
from credit_jax.extensions.demo.diagnostics import (
    at_500_hpa,
    geopotential,
    to_north_first,
)
from credit_jax.extensions.demo.forcing import discretize


@pytest.fixture(scope="module")
def disc():
    return discretize("T21")


def test_geopotential_of_an_isothermal_atmosphere(disc):
    """It is g z + R T ln(1 / sigma)."""
    temperature = jnp.full((8, *disc.height.shape), 250.0)
    wanted = physics.GRAVITY * disc.height - physics.DRY_AIR_GAS * 250.0 * np.log(
        disc.sigma
    )
    assert np.allclose(geopotential(disc, temperature), wanted, rtol=1e-5)


@pytest.mark.parametrize("surface", [9e4, 1e5, 1.05e5])
def test_500_hpa_is_linear_in_the_logarithm_of_pressure(disc, surface):
    surface_pressure = jnp.full(disc.height.shape, surface)
    field = jnp.asarray(np.log(disc.sigma * surface)) + jnp.zeros(
        (8, *disc.height.shape)
    )
    found = at_500_hpa(disc, field, surface_pressure)
    assert np.allclose(found, np.log(5e4), rtol=1e-5)


def test_500_hpa_below_the_lowest_level_is_that_of_the_lowest_level(disc):
    field = jnp.arange(8.0)[:, None, None] * jnp.ones((8, *disc.height.shape))
    found = at_500_hpa(disc, field, jnp.full(disc.height.shape, 4e4))
    assert np.allclose(found, 7.0)


def test_north_first(rng):
    field = rng.normal(size=(8, 64, 32))
    found = to_north_first(field)
    assert found.shape == (8, 32, 64)
    assert np.array_equal(found[3, 0, 5], field[3, 5, -1])
