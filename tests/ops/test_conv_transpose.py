"""Transposed convolution against torch: values and gradients."""

import jax.numpy as jnp
import pytest

from credit_jax.ops.conv_transpose import conv_transpose2d, conv_transpose3d
from tests.support import assert_close
from tests.support.gradients import assert_same, draw, jax_values, torch_values

torch = pytest.importorskip("torch")

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


def run(function, reference, name, size, kernel, keywords):
    """Kernel here (sizes, channel_in, out); torch's weight (channel_in, out, sizes)."""
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


@pytest.mark.parametrize("name", CASES_2D)
def test_two_dims_are_those_of_torch(name):
    reference = torch.nn.functional.conv_transpose2d
    run(conv_transpose2d, reference, name, *CASES_2D[name])


@pytest.mark.parametrize("name", CASES_3D)
def test_three_dims_are_those_of_torch(name):
    reference = torch.nn.functional.conv_transpose3d
    run(conv_transpose3d, reference, name, *CASES_3D[name])


def test_padding_of_one_side_cuts_off_that_side():
    x = jnp.asarray(draw((1, 5, 4, 2)))
    kernel = jnp.asarray(draw((4, 3, 2, 3), seed=1))
    whole = conv_transpose2d(x, kernel, stride=(2, 2))
    part = conv_transpose2d(x, kernel, stride=(2, 2), padding=((3, 0), (0, 2)))
    assert_close(part, whole[:, 3:, :-2], 1e-6, "padding of one side")


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
