"""Convolution against torch.nn.functional.conv2d: values and gradients."""

import jax.numpy as jnp
import pytest
import torch

from credit_jax.ops import conv
from credit_jax.ops.space_to_depth import conv_out_size
from tests.ops.conv_cases import CASES, arrays, of_torch
from tests.support.gradients import assert_same, jax_values


# torch warns for even kernels with "same" that it copies the input.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", CASES)
def test_convolution_is_that_of_torch(name):
    x, kernel, keywords = arrays(name)
    actual = jax_values(lambda x, k: conv.conv2d(x, k, **keywords), x, kernel)
    assert_same(actual, of_torch(x, kernel, keywords), name)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation"),
    [(721, 32, 4, (14, 14), 1), (9, 2, 4, (0, 0), 1), (10, 3, 2, (1, 0), 2)],
)
def test_output_size(size, kernel, stride, padding, dilation):
    x = torch.zeros(1, 1, size, 1)
    x = torch.nn.functional.pad(x, (0, 0, *padding))
    weight = torch.zeros(1, 1, kernel, 1)
    out = torch.nn.functional.conv2d(
        x, weight, stride=(stride, 1), dilation=(dilation, 1)
    )
    size = conv_out_size(size, kernel, stride, padding, dilation)
    assert size == out.shape[2]


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        (
            {"padding": "same", "stride": (2, 1)},
            r"stride \(2, 1\); 'same' needs stride 1",
        ),
        ({"padding": "reflect"}, "padding is 'reflect'; expected 'same'"),
        ({"dilation": (3, 4)}, "over 7 points of spatial dim 0, but there are 6"),
    ],
)
def test_arguments_that_make_no_convolution_are_refused(keywords, message):
    x, kernel = jnp.zeros((1, 6, 6, 1)), jnp.zeros((3, 3, 1, 1))
    with pytest.raises(ValueError, match=message):
        conv.conv2d(x, kernel, **keywords)
