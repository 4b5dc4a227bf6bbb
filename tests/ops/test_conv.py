"""Convolutions beside PyTorch and CREDIT."""

import jax.numpy as jnp
import pytest
import torch

from credit_jax.ops import (
    conv,
    conv_transpose,
    periodic_conv2d,
)
from credit_jax.ops.space_to_depth import conv_out_size
from tests.ops.conv_cases import CASES, arrays, of_torch
from tests.support import assert_close
from tests.support.credit_modules import credit_attribute
from tests.support.gradients import assert_same, draw, jax_values, torch_values

# name: input (sizes, channels), kernel (sizes, channels out / groups), of torch.
CASES_2D = {
    "1x1": ((5, 6, 3), (1, 1, 4), {}),
    "stride 1, kernel 3": ((5, 6, 3), (3, 3, 4), {"padding": (1, 1)}),
    "kernel 2, stride 2": ((5, 6, 3), (2, 2, 4), {"stride": (2, 2)}),
    "kernel 4, stride 4": ((3, 4, 3), (4, 4, 2), {"stride": (4, 4)}),
    "kernel is stride, padding": (
        (5, 6, 3),
        (3, 2, 4),
        {"stride": (3, 2), "padding": (1, 1), "output_padding": (2, 1)},
    ),
    "kernel 4, stride 2, padding 1": (
        (5, 6, 3),
        (4, 4, 2),
        {"stride": (2, 2), "padding": (1, 1)},
    ),
    "kernel 4 by 2, stride 2": ((5, 6, 3), (4, 2, 2), {"stride": (2, 2)}),
    "kernel 3, stride 2": ((5, 6, 3), (3, 3, 2), {"stride": (2, 2)}),
    "kernel 3, stride 2, output padding": (
        (5, 6, 3),
        (3, 3, 2),
        {"stride": (2, 2), "padding": (1, 1), "output_padding": (1, 1)},
    ),
    "kernel below the stride": (
        (4, 5, 2),
        (2, 1, 3),
        {"stride": (3, 4), "output_padding": (1, 3)},
    ),
    "padding above the kernel": (
        (7, 8, 2),
        (3, 2, 3),
        {"stride": (2, 3), "padding": (4, 5)},
    ),
    "unlike strides": (
        (5, 4, 2),
        (5, 7, 3),
        {"stride": (1, 3), "padding": (2, 0), "output_padding": (0, 2)},
    ),
    "dilation": ((5, 6, 2), (3, 3, 2), {"dilation": (2, 3), "padding": (2, 1)}),
    "dilation and stride": (
        (5, 6, 2),
        (3, 2, 2),
        {"dilation": (2, 3), "stride": (2, 2), "output_padding": (1, 2)},
    ),
    "dilation and stride of one dim each": (
        (5, 6, 2),
        (3, 2, 2),
        {"dilation": (2, 1), "stride": (1, 3), "output_padding": (1, 0)},
    ),
    "groups": (
        (5, 6, 4),
        (4, 3, 3),
        {"groups": 2, "stride": (2, 2), "padding": (1, 0)},
    ),
    "depthwise, kernel is stride": (
        (5, 6, 3),
        (2, 2, 1),
        {"groups": 3, "stride": (2, 2)},
    ),
    "few points, kernel is stride": ((2, 2, 24), (2, 2, 12), {"stride": (2, 2)}),
    "one point": ((1, 1, 2), (4, 4, 3), {"stride": (2, 2), "padding": (1, 1)}),
}

CASES_3D = {
    "patch recovery 2 4 4": ((2, 3, 4, 3), (2, 4, 4, 2), {"stride": (2, 4, 4)}),
    "kernel 4, stride 2": (
        (2, 4, 3, 2),
        (4, 4, 4, 3),
        {"stride": (2, 2, 2), "padding": (1, 1, 1)},
    ),
    "everything": (
        (3, 4, 3, 4),
        (2, 3, 2, 1),
        {
            "stride": (1, 2, 3),
            "padding": (1, 1, 0),
            "output_padding": (0, 1, 2),
            "dilation": (2, 1, 2),
            "groups": 2,
        },
    ),
}


def check(function, reference, name, case):
    """Compares with torch, whose weight is (channel_in, out, sizes)."""
    size, kernel, keywords = case
    num = len(size) - 1
    x = draw((2, *size))
    weight = draw((*kernel[:-1], size[-1], kernel[-1]), seed=1)
    pads = tuple((p, p) for p in keywords.get("padding", (0,) * num))

    def torch_op(x, weight):
        spatial = range(num)
        x = x.permute(0, num + 1, *(1 + d for d in spatial))
        weight = weight.permute(num, num + 1, *spatial)
        out = reference(x, weight, **keywords)
        return out.permute(0, *(2 + d for d in spatial), 1)

    def op(x, weight):
        return function(x, weight, **{**keywords, "padding": pads})

    assert_same(jax_values(op, x, weight), torch_values(torch_op, x, weight), name)


# Convolutions beside PyTorch and CREDIT.


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


# Transposed convolution against torch: values and gradients.


@pytest.mark.parametrize("name", CASES_2D)
def test_two_dims_are_those_of_torch(name):
    reference = torch.nn.functional.conv_transpose2d
    check(conv_transpose, reference, name, CASES_2D[name])


@pytest.mark.parametrize("name", CASES_3D)
def test_three_dims_are_those_of_torch(name):
    reference = torch.nn.functional.conv_transpose3d
    check(conv_transpose, reference, name, CASES_3D[name])


def test_padding_of_one_side_cuts_off_that_side():
    x = jnp.asarray(draw((1, 5, 4, 2)))
    kernel = jnp.asarray(draw((4, 3, 2, 3), seed=1))
    whole = conv_transpose(x, kernel, stride=(2, 2))
    part = conv_transpose(x, kernel, stride=(2, 2), padding=((3, 0), (0, 2)))
    assert_close(part, whole[:, 3:, :-2], 1e-6, "padding of one side")
    row = conv_transpose(x, kernel, stride=(2, 2), padding=((11, 0), (0, 0)))
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
def test_arguments_that_make_no_convolution_are_refused_conv_transpose(
    keywords, message
):
    x, kernel = jnp.zeros((1, 4, 4, 2)), jnp.zeros((3, 3, 2, 2))
    with pytest.raises(ValueError, match=message):
        conv_transpose(x, kernel, **keywords)


# PeriodicConv2d and the patch embeddings against CREDIT's own classes.


# name: rows, columns, kernel, padding.
PERIODIC = {
    "3x3": (7, 8, (3, 3), 1),
    "7x7": (7, 8, (7, 7), 3),
    "even": (6, 9, (4, 2), 2),
    "no padding": (6, 9, (3, 3), 0),
    "most rows": (4, 9, (2, 3), 3),
    "once around": (9, 3, (3, 3), 3),
}


def nchw(x):
    return x.permute(0, 3, 1, 2)


@pytest.mark.reference
@pytest.mark.parametrize("name", PERIODIC)
def test_periodic_convolution_is_that_of_credit(credit, name):
    import torch

    rows, columns, kernel, padding = PERIODIC[name]
    conv = credit_attribute("models.unet_diffusion", "PeriodicConv2d")(
        2, 3, kernel, padding=padding
    )

    def theirs(x, kernel, bias):
        weights = {"conv.weight": kernel.permute(3, 2, 0, 1), "conv.bias": bias}
        out = torch.func.functional_call(conv, weights, nchw(x))
        return out.permute(0, 2, 3, 1)

    def ours(x, kernel, bias):
        y = periodic_conv2d(x, kernel, padding=padding)
        return y + bias.reshape(1, 1, 1, -1)

    arrays = draw((2, rows, columns, 2)), draw((*kernel, 2, 3), 1), draw((3,), 2)
    assert_same(jax_values(ours, *arrays), torch_values(theirs, *arrays), name)


@pytest.mark.parametrize("padding", [-1, 4])
def test_padding_that_the_field_has_not_is_refused(padding):
    x, kernel = jnp.zeros((1, 4, 6, 1)), jnp.zeros((3, 3, 1, 1))
    with pytest.raises(
        ValueError, match="4 rows and 6 columns can be padded with 0 to 3"
    ):
        periodic_conv2d(x, kernel, padding=padding)
