"""The simulated climate: conserved and changed quantities of one output interval."""

import numpy as np

from credit_jax.extensions.demo.dynamics import build_climate


def test_six_hours_from_rest():
    """Dry air mass is conserved, the seed shifts the first wave, and winds increase."""
    climate, other = (build_climate("T21", seed) for seed in (0, 1))
    state, rain = climate.advance(climate.initial, 0.0)
    before, after = climate.fields(climate.initial), climate.fields(state)
    elsewhere = other.fields(other.initial)
    weights = np.cos(np.radians(climate.latitude))[:, None]
    means = [float(np.mean(f["SP"] * weights)) for f in (before, after)]
    assert np.isclose(means[0], means[1], rtol=1e-4)
    assert np.max(np.abs(before["U"])) < 1e-3
    assert np.max(np.abs(after["U"])) > 1.0
    assert rain.shape == (32, 64)
    assert not np.allclose(before["SP"], elsewhere["SP"])
