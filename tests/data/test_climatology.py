"""Climatology: means over the training period."""

import numpy as np

from credit_jax.data import open_dataset
from credit_jax.data.mean_fields import mean_targets
from tests.data.world import make_fields, parsed, raw_config


def test_mean_of_targets(world):
    dataset = open_dataset(parsed(raw_config(world)).data)
    times = dataset.starts + np.timedelta64(6, "h")
    for chosen, most in ((times, 1000), (times[[0, -1]], 2)):
        expected = make_fields()["SP"].sel(time=chosen).mean("time").values
        actual = mean_targets(dataset, most)
        assert actual.shape == (6, 1, 6, 10)
        assert np.allclose(actual[4, 0], expected, rtol=1e-6)
