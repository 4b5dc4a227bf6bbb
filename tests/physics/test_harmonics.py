"""Legendre functions, their slopes, and the products with the sine of latitude."""

import numpy as np

from credit_jax.physics.harmonics import (
    legendre_functions,
    legendre_slopes,
    neighbor_ratio,
)
from tests.support import assert_close

COUNT = 12
LATITUDE = np.linspace(-80.0, 80.0, 9)


def test_slopes_are_those_of_differences():
    step = 1e-4
    above, below = (legendre_functions(LATITUDE + d, COUNT) for d in (step, -step))
    differences = (above - below) / (2 * np.deg2rad(step))
    slopes = legendre_slopes(legendre_functions(LATITUDE, COUNT + 1))
    expected = np.cos(np.deg2rad(LATITUDE)) * differences
    assert_close(slopes, expected, 1e-8, "cos(lat) dP/dlat")


def test_the_sine_times_a_function_is_a_sum_of_its_neighbors():
    whole = legendre_functions(LATITUDE, COUNT + 1)
    ratio = neighbor_ratio(COUNT + 1)[..., None]
    products = ratio[2:] * whole[2:] + ratio[1:-1] * whole[:-2]
    expected = np.sin(np.deg2rad(LATITUDE)) * whole[1:-1]
    inner = slice(None, COUNT)
    assert_close(products[:, inner], expected[:, inner], 1e-13, "sin(lat) P")
