"""Random bits by position, and dropout from them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.ops.random import drop, keep_mask, random_bits

KEY = jax.random.key(3)


def positions(rows, columns):
    return jnp.arange(rows)[:, None], jnp.arange(columns)[None, :]


def test_bits_are_threefry_of_key_and_position():
    # The first known answer of Random123's kat_vectors: key and counter all zero.
    key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32), impl="threefry2x32")
    bits = random_bits(key, jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32))
    assert hex(int(bits[0])) == "0x6b200159"


def test_bits_depend_on_key_and_position_alone():
    whole = random_bits(KEY, *positions(6, 10))
    part = random_bits(KEY, jnp.arange(2, 5)[:, None], jnp.arange(4, 7)[None, :])
    assert (whole[2:5, 4:7] == part).all()
    other = random_bits(jax.random.key(4), *positions(6, 10))
    assert (whole != other).all()
    assert len(np.unique(whole)) == whole.size, "two positions have the same bits"


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.9])
def test_share_of_dropped_elements(rate):
    keep = np.asarray(keep_mask(KEY, *positions(300, 400), rate))
    spread = np.sqrt(max(rate * (1 - rate), 1e-12) / keep.size)
    print(f"rate {rate}: dropped {1 - keep.mean():.4f}, standard error {spread:.4f}")
    assert abs(1 - keep.mean() - rate) < 4 * spread
    for dim in (0, 1):
        lines = 1 - keep.mean(dim)
        assert abs(lines.std() - np.sqrt(rate * (1 - rate) / keep.shape[dim])) < 0.01


def test_mask_is_the_same_in_every_run_and_under_jit():
    eager = keep_mask(KEY, *positions(5, 7), 0.3)
    compiled = jax.jit(lambda key: keep_mask(key, *positions(5, 7), 0.3))(KEY)
    assert (eager == compiled).all()


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_kept_values_are_scaled_and_gradients_finite(rate):
    x = jnp.asarray([1.0, 2.0, 3.0, 4.0])
    keep = jnp.asarray([True, False, True, False]) & (rate < 1)
    scale = 1 / (1 - rate) if rate < 1 else 0.0
    value, gradient = jax.value_and_grad(lambda x: drop(x, keep, rate).sum())(x)
    assert float(value) == pytest.approx(4 * scale if rate < 1 else 0)
    np.testing.assert_allclose(gradient, np.asarray(keep) * scale, rtol=1e-6)
