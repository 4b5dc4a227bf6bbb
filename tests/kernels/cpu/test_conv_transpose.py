"""Transposed convolution on CPU against torch and the plain definition."""

import jax
import jax.numpy as jnp
import pytest
import torch

from credit_jax import ops
from credit_jax.kernels.cpu.conv_transpose import conv_transpose2d, conv_transpose3d
from tests.ops.conv_transpose_cases import CASES_2D, CASES_3D, check
from tests.support.gradients import assert_same, draw, jax_values

FEW = "few points, kernel is stride"


# Cases whose kernels have one tap after depth-to-space, and a case with many taps.
@pytest.mark.parametrize("name", ["1x1", "kernel 4, stride 2, padding 1", FEW])
def test_two_dims_are_those_of_torch(name):
    reference = torch.nn.functional.conv_transpose2d
    check(conv_transpose2d, reference, name, CASES_2D[name])


def test_three_dims_are_those_of_torch():
    reference, name = torch.nn.functional.conv_transpose3d, "patch recovery 2 4 4"
    check(conv_transpose3d, reference, name, CASES_3D[name])


def test_few_points_are_a_product_of_few_rows():
    size, kernel, keywords = CASES_2D[FEW]
    x, weight = draw((2, *size)), draw((*kernel[:-1], size[-1], kernel[-1]), seed=1)

    def cpu(x, weight):
        return conv_transpose2d(x, weight, **keywords)

    plain = jax_values(lambda x, w: ops.conv_transpose2d(x, w, **keywords), x, weight)
    assert_same(jax_values(cpu, x, weight), plain, FEW)
    value, pull = jax.vjp(cpu, jnp.asarray(x), jnp.asarray(weight))
    assert "optimization_barrier" in str(jax.make_jaxpr(pull)(value))
