"""The forcing: equilibrium temperature, drag, relaxation and the water budget."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.config.config import ForcingConfig
from credit_jax.extensions.demo import physics
from credit_jax.extensions.demo.dynamics import build_climate
from credit_jax.extensions.demo.forcing import (
    boundary_layer,
    discretize,
    equilibrium_temperature,
    forcing_step,
)

DEFAULT = ForcingConfig()
DAY_OF_EQUINOX = jnp.float32(physics.EQUINOX_DAY)


@pytest.fixture(scope="module")
def disc():
    return discretize("T21")


def test_equilibrium_temperature_of_held_and_suarez(disc):
    """At the equinox and over sea: 315 - 60 sin^2 at 1000 hPa, and at least 200 K."""
    pressure = jnp.full((8, *disc.latitude.shape), 1e5)
    found = np.asarray(equilibrium_temperature(disc, pressure, DAY_OF_EQUINOX, DEFAULT))
    sea = disc.land == 0
    wanted = 315.0 - 60.0 * np.sin(disc.latitude) ** 2
    assert np.allclose(found[-1][sea], wanted[sea], rtol=1e-5)
    high = equilibrium_temperature(disc, 0.01 * pressure, DAY_OF_EQUINOX, DEFAULT)
    assert np.allclose(high[0], 200.0)


def test_another_forcing_is_another_equilibrium(disc):
    """A weaker contrast on the equator and at sigma 1 over sea, and no summer."""
    pressure = jnp.full((8, *disc.latitude.shape), 1e5)
    weak = ForcingConfig(equator_to_pole=40, season=0)
    solstice = DAY_OF_EQUINOX + 91
    sea = disc.land == 0
    found = np.asarray(equilibrium_temperature(disc, pressure, solstice, weak))[-1]
    wanted = 315.0 - 40.0 * np.sin(disc.latitude) ** 2
    assert np.allclose(found[sea], wanted[sea], rtol=1e-5)
    dry = ForcingConfig(land_heating=0)
    found = np.asarray(equilibrium_temperature(disc, pressure, DAY_OF_EQUINOX, dry))
    wanted = 315.0 - 60.0 * np.sin(disc.latitude) ** 2
    assert np.allclose(found, wanted, rtol=1e-5)


def test_land_is_warmer_by_day(disc):
    pressure = jnp.full((8, *disc.latitude.shape), 1e5)
    noon = equilibrium_temperature(disc, pressure, DAY_OF_EQUINOX + 0.5, DEFAULT)
    night = equilibrium_temperature(disc, pressure, DAY_OF_EQUINOX, DEFAULT)
    change = np.asarray(noon - night)  # 0.04 K of it is the season
    # Land within 40 degrees of Greenwich and 20 of the equator.
    near = (disc.land > 0) & (disc.longitude < 0.7) & (abs(disc.latitude) < 0.35)
    assert near.any()
    assert np.all(change[-1][near] > 20.0)
    assert np.allclose(change[:, disc.land == 0], 0.0, atol=0.1)
    assert np.allclose(change[0], 0.0, atol=0.1)


def test_drag_slows_the_boundary_layer_only(disc):
    state = build_climate("T21", 0).initial
    state = dataclasses.replace(state, vorticity=jnp.ones_like(state.vorticity))
    forced, _ = forcing_step(disc, 4320.0, DEFAULT)(state, DAY_OF_EQUINOX)
    wanted = 1.0 / (1.0 + 4320.0 / 86400.0 * boundary_layer(disc))
    ratio = np.asarray(forced.vorticity).max(axis=(1, 2))
    assert np.allclose(ratio, wanted.ravel(), rtol=1e-6)


def test_rain_is_the_water_that_leaves_the_air(disc):
    """Over land, where nothing evaporates, the column loses what falls."""
    state = build_climate("T21", 0).initial
    wet = disc.grid.to_modal(jnp.full((8, *disc.latitude.shape), 0.03))
    state = dataclasses.replace(state, tracers={"q": wet})
    nodal = disc.grid.to_nodal
    forced, rain = forcing_step(disc, 4320.0, DEFAULT)(state, DAY_OF_EQUINOX)
    surface = np.exp(nodal(state.log_surface_pressure))[0] / disc.pascal
    lost = np.sum((0.03 - nodal(forced.tracers["q"])) * disc.thickness, axis=0)
    column = lost * surface / physics.GRAVITY / physics.WATER_DENSITY
    inland = disc.land == 1
    assert np.all(np.asarray(rain) > 0)
    # q was truncated to T21 once more, which preserves its mean.
    assert np.isclose(column[inland].mean(), np.asarray(rain)[inland].mean(), rtol=0.02)
