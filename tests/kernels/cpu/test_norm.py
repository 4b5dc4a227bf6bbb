"""LayerNorm on CPU against torch and the plain definition."""

import jax
import jax.numpy as jnp
import pytest
import torch

from credit_jax import ops
from credit_jax.kernels.cpu.norm import layer_norm
from tests.support.gradients import assert_same, draw, jax_values, torch_values


@pytest.mark.parametrize("shape", [(4, 8), (2, 3, 5, 16), (7, 6)])
def test_layer_norm_is_that_of_torch_and_the_plain_one(shape):
    x = 3 + 2 * draw(shape)
    scale, bias = draw(shape[-1:], seed=1), draw(shape[-1:], seed=2)

    def torch_norm(x, scale, bias):
        return torch.nn.functional.layer_norm(x, shape[-1:], scale, bias, 1e-5)

    actual = jax_values(layer_norm, x, scale, bias)
    assert_same(actual, torch_values(torch_norm, x, scale, bias), f"{shape}, torch")
    plain = jax_values(ops.layer_norm, x, scale, bias)
    assert_same(actual, plain, f"{shape}, plain")


def test_layer_norm_takes_statistics_in_float32():
    x = jnp.asarray(100 + draw((4, 64)), jnp.bfloat16)
    one, zero = jnp.ones(64, jnp.bfloat16), jnp.zeros(64, jnp.bfloat16)
    exact = layer_norm(x.astype(jnp.float32), jnp.ones(64), jnp.zeros(64))
    out = layer_norm(x, one, zero)
    assert out.dtype == jnp.bfloat16
    assert jnp.array_equal(out, exact.astype(jnp.bfloat16)), "sums in bfloat16"


def test_only_the_means_beside_a_gradient_are_products():
    x, scale, bias = jnp.zeros((5, 8)), jnp.ones(8), jnp.zeros(8)
    forward = jax.make_jaxpr(layer_norm)(x, scale, bias)
    assert "dot_general" not in str(forward.jaxpr.eqns[0].params["call_jaxpr"])
    assert _dots(layer_norm, x, scale, bias) == 4
    assert _dots(ops.layer_norm, x, scale, bias) == 0


def _dots(norm, *arrays):
    """Counts the dot products in the program of a gradient."""
    gradient = jax.grad(lambda *arrays: jnp.sum(norm(*arrays) ** 2))
    return str(jax.make_jaxpr(gradient)(*arrays)).count("dot_general")
