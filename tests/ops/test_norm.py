"""LayerNorm and pixel shuffle against torch."""

import jax.numpy as jnp
import pytest
import torch

from credit_jax.ops import layer_norm, pixel_shuffle
from tests.support.gradients import assert_same, draw, jax_values, torch_values


@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 5, 16), (7, 6)])
def test_layer_norm_is_that_of_torch(shape):
    x = 3 + 2 * draw(shape)
    scale, bias = draw(shape[-1:], seed=1), draw(shape[-1:], seed=2)

    def torch_norm(x, scale, bias):
        return torch.nn.functional.layer_norm(x, shape[-1:], scale, bias, 1e-5)

    actual = jax_values(layer_norm, x, scale, bias)
    assert_same(actual, torch_values(torch_norm, x, scale, bias), f"layer norm {shape}")


def test_layer_norm_takes_statistics_in_float32():
    x = jnp.asarray(100 + draw((4, 64)), jnp.bfloat16)
    one, zero = jnp.ones(64, jnp.bfloat16), jnp.zeros(64, jnp.bfloat16)
    exact = layer_norm(x.astype(jnp.float32), jnp.ones(64), jnp.zeros(64))
    out = layer_norm(x, one, zero)
    assert out.dtype == jnp.bfloat16
    assert jnp.array_equal(out, exact.astype(jnp.bfloat16)), "sums in bfloat16"


@pytest.mark.parametrize(("scale", "channels"), [(1, 3), (2, 3), (3, 2), (4, 1)])
def test_pixel_shuffle_is_that_of_torch(scale, channels):
    x = draw((2, 3, 5, channels * scale**2))

    def torch_shuffle(x):
        x = torch.nn.functional.pixel_shuffle(x.permute(0, 3, 1, 2), scale)
        return x.permute(0, 2, 3, 1)

    actual = jax_values(lambda x: pixel_shuffle(x, scale), x)
    expected = torch_values(torch_shuffle, x)
    assert_same(actual, expected, f"scale {scale}", value=0, gradient=0)
