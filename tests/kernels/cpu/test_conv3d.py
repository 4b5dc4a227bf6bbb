"""Convolution of three dims on CPU against torch and the plain definition."""

import jax.numpy as jnp
import pytest

from credit_jax import ops
from credit_jax.kernels.cpu.conv import conv3d
from tests.ops.conv3d_cases import CASES, arrays, of_torch
from tests.support.gradients import assert_same, jax_values


# torch warns for even kernels with "same" that it copies the input.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", CASES)
def test_convolution_is_that_of_torch_and_the_plain_one(name):
    x, kernel, keywords = arrays(name)
    actual = jax_values(lambda x, k: conv3d(x, k, **keywords), x, kernel)
    assert_same(actual, of_torch(x, kernel, keywords), f"{name}, torch")
    plain = jax_values(lambda x, k: ops.conv3d(x, k, **keywords), x, kernel)
    assert_same(actual, plain, f"{name}, plain")


def test_same_padding_needs_stride_one():
    x, kernel = jnp.zeros((1, 4, 4, 4, 1)), jnp.zeros((2, 2, 2, 1, 1))
    with pytest.raises(ValueError, match="'same' needs stride 1"):
        conv3d(x, kernel, padding="same", stride=(1, 1, 2))


def test_a_kernel_above_the_field_is_refused():
    x, kernel = jnp.zeros((1, 4, 4, 4, 1)), jnp.zeros((2, 4, 2, 1, 1))
    with pytest.raises(ValueError, match="over 7 points of spatial dim 1, but there"):
        conv3d(x, kernel, dilation=(1, 2, 1), padding=((0, 0), (1, 1), (0, 0)))
