"""Fixtures: a prediction, a target and latitudes."""

import numpy as np
import pytest

from tests.losses.cases import CHANNELS, LAT, LON


@pytest.fixture
def fields(rng):
    shape = (2, CHANNELS, 1, LAT, LON)
    draw = lambda: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return 2.0 * draw(), draw()


@pytest.fixture
def latitude():
    return np.linspace(88.0, -70.0, LAT)
