"""Compensated sums and quotients against double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.ops.compensated import (
    compensated_sum,
    parts_to_sum,
    quotient,
    two_sum,
)


@pytest.mark.parametrize("size", [1, 2, 3, 1000, 4097])
def test_sums_are_those_of_double_precision(size):
    x = np.random.default_rng(size).normal(1, 10, (3, size)).astype(np.float32)
    high, low = (np.float64(own) for own in jax.jit(compensated_sum)(jnp.asarray(x)))
    exact = x.astype(np.float64).sum(-1)
    scale = np.abs(x).astype(np.float64).sum(-1)
    error = np.abs(high + low - exact) / scale
    print(f"{size} values: {error.max():.1e} of the sum of magnitudes")
    assert (error < 1e-13).all()
    assert np.array_equal(np.float32(exact), np.float32(high + low))


def test_parts_of_several_devices_add_up():
    x = np.random.default_rng(0).normal(3, 1, (8, 5000)).astype(np.float32)
    tops, rests = jax.jit(lambda x: parts_to_sum(*compensated_sum(x)))(jnp.asarray(x))
    high, low = two_sum(tops.sum(), rests.sum())
    exact = x.astype(np.float64).sum()
    assert abs(np.float64(high) + np.float64(low) - exact) / exact < 1e-11


def test_quotients_are_rounded_once():
    rng = np.random.default_rng(1)
    a = rng.normal(size=20_000).astype(np.float32)
    for value in rng.uniform(0.01, 50, 20):
        high = np.float32(value)
        low = np.float32(value - np.float64(high))
        found = np.asarray(jax.jit(quotient)(jnp.asarray(a), high, low))
        expected = np.float32(a.astype(np.float64) / (np.float64(high) + low))
        differ = (found != expected).mean()
        assert differ < 1e-3, f"{differ:.1e} of the quotients by {value}"
