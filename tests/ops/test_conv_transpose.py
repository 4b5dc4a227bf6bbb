"""Transposed convolution against torch: values and gradients."""

import jax.numpy as jnp
import pytest
import torch

from credit_jax.ops import conv_transpose2d, conv_transpose3d
from tests.ops.conv_transpose_cases import CASES_2D, CASES_3D, check
from tests.support import assert_close
from tests.support.gradients import draw


@pytest.mark.parametrize("name", CASES_2D)
def test_two_dims_are_those_of_torch(name):
    reference = torch.nn.functional.conv_transpose2d
    check(conv_transpose2d, reference, name, CASES_2D[name])


@pytest.mark.parametrize("name", CASES_3D)
def test_three_dims_are_those_of_torch(name):
    reference = torch.nn.functional.conv_transpose3d
    check(conv_transpose3d, reference, name, CASES_3D[name])


def test_padding_of_one_side_cuts_off_that_side():
    x = jnp.asarray(draw((1, 5, 4, 2)))
    kernel = jnp.asarray(draw((4, 3, 2, 3), seed=1))
    whole = conv_transpose2d(x, kernel, stride=(2, 2))
    part = conv_transpose2d(x, kernel, stride=(2, 2), padding=((3, 0), (0, 2)))
    assert_close(part, whole[:, 3:, :-2], 1e-6, "padding of one side")
    row = conv_transpose2d(x, kernel, stride=(2, 2), padding=((11, 0), (0, 0)))
    assert_close(row, whole[:, 11:], 1e-6, "all but a row are cut off")


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"output_padding": (1, 0)}, "output_padding is 1; expected 0 to 0"),
        ({"output_padding": (0, -1)}, "output_padding is -1"),
        ({"padding": ((-1, 0), (0, 0))}, "cannot be negative"),
        ({"padding": ((3, 3), (0, 0))}, "4 points make 6, of which"),
    ],
)
def test_arguments_that_make_no_convolution_are_refused(keywords, message):
    x, kernel = jnp.zeros((1, 4, 4, 2)), jnp.zeros((3, 3, 2, 2))
    with pytest.raises(ValueError, match=message):
        conv_transpose2d(x, kernel, **keywords)
