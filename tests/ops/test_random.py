"""Normal draws by position: their distribution, and equality on any part."""

import jax
import jax.numpy as jnp
import numpy as np

from credit_jax.ops.random import random_normal

KEY = jax.random.key(3)


def _draw(key, rows, columns):
    return np.asarray(random_normal(key, jnp.arange(*rows)[:, None], columns[None]))


def test_moments_and_quantiles_are_those_of_a_normal():
    x = _draw(KEY, (0, 400), jnp.arange(500))
    num = x.size
    assert abs(x.mean()) < 4 / np.sqrt(num)
    assert abs((x**2).mean() - 1) < 4 * np.sqrt(2 / num)
    assert abs((x**4).mean() - 3) < 4 * np.sqrt(96 / num)
    for quantile, probability in ((-1.2816, 0.1), (0.0, 0.5), (1.9600, 0.975)):
        error = 4 * np.sqrt(probability * (1 - probability) / num)
        assert abs((x < quantile).mean() - probability) < error
    assert abs(np.corrcoef(x[:, :-1].ravel(), x[:, 1:].ravel())[0, 1]) < 0.01
    assert np.isfinite(x).all()
    assert np.abs(x).max() < 5.91


def test_a_part_is_that_of_the_whole_and_keys_differ():
    whole = _draw(KEY, (0, 6), jnp.arange(10))
    assert np.array_equal(_draw(KEY, (2, 5), jnp.arange(4, 7)), whole[2:5, 4:7])
    assert not np.any(whole == _draw(jax.random.key(4), (0, 6), jnp.arange(10)))


def test_draws_in_float64_are_those_of_float32_but_for_rounding():
    with jax.enable_x64(True):
        rows, columns = jnp.arange(40)[:, None], jnp.arange(50)[None]
        wide = random_normal(KEY, rows, columns, jnp.float64)
        narrow = random_normal(KEY, rows, columns)
    assert wide.dtype == np.float64
    np.testing.assert_allclose(narrow, wide, rtol=0, atol=2e-6)
