"""The discretization: shapes, levels, unit scales."""

import numpy as np
import pytest

from credit_jax.extensions.demo.forcing import discretize


@pytest.mark.parametrize(
    ("truncation", "shape"), [("T21", (64, 32)), ("T42", (128, 64))]
)
def test_grid_and_levels(truncation, shape):
    disc = discretize(truncation)
    fields = (disc.longitude, disc.latitude, disc.land, disc.height)
    assert {field.shape for field in fields} == {shape}
    assert np.all(np.diff(disc.latitude, axis=1) > 0)
    assert np.isclose(disc.thickness.sum(), 1)
    assert np.allclose(disc.sigma.ravel(), (np.arange(8) + 0.5) / 8)


def test_one_si_unit():
    """The nondimensional radius is Earth's, 6371 km, and g is 9.81 m s-2."""
    disc = discretize("T21")
    assert np.isclose(disc.specs.radius / disc.meter, 6.371e6, rtol=1e-4)
    gravity = disc.specs.g / (disc.meter / disc.second**2)
    assert np.isclose(gravity, 9.81, rtol=1e-3)
