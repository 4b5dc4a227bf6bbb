"""Weights of rows."""

import numpy as np

from credit_jax.named_fields import latitude_weights


def test_latitude_weights_have_mean_one():
    weights = latitude_weights(np.linspace(90, -90, 721))
    assert weights.dtype == np.float32
    assert abs(weights.mean(dtype=np.float64) - 1) < 1e-6
