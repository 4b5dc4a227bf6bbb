"""GELU against torch: values, gradients and saved residuals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from credit_jax.ops.gelu import gelu
from tests.support import assert_close
from tests.support.gradients import assert_same, draw, jax_values, torch_values

functional = torch.nn.functional


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_gelu_is_that_of_torch(scale):
    x = scale * draw((50, 40))
    expected = torch_values(functional.gelu, x)
    assert_same(jax_values(gelu, x), expected, f"scale {scale}")


@pytest.mark.parametrize("x", [-30.0, -8.0, 0.0, 8.0, 30.0])
def test_far_values_are_those_of_torch(x):
    leaf = torch.tensor(x, requires_grad=True)
    value = functional.gelu(leaf)
    (slope,) = torch.autograd.grad(value, leaf)
    actual, actual_slope = jax.value_and_grad(gelu)(jnp.float32(x))
    print(f"gelu({x}) = {actual}, {value}; slope {actual_slope}, {slope}")
    assert abs(float(actual - value.item())) <= 1e-6 * max(1.0, abs(x))
    assert abs(float(actual_slope - slope.item())) <= 1e-6


def test_bfloat16_is_rounded_once():
    x = jnp.asarray(draw((4000,)), jnp.bfloat16)
    wide = x.astype(jnp.float32)
    assert gelu(x).dtype == jnp.bfloat16
    np.testing.assert_array_equal(gelu(x), gelu(wide).astype(jnp.bfloat16))


def test_one_array_is_kept_for_the_gradient():
    _, pull = jax.vjp(gelu, jnp.zeros((5, 7)))
    assert [array.shape for array in jax.tree.leaves(pull)] == [(5, 7)]


def test_derivative_forwards_is_that_backwards():
    x, tangent = jnp.asarray(draw((30,))), jnp.asarray(draw((30,), seed=1))
    _, forward = jax.jvp(gelu, (x,), (tangent,))
    backward = jax.grad(lambda x: jnp.sum(gelu(x)))(x) * tangent
    assert_close(forward, backward, 1e-6, "derivative")
