"""Convolution of three dims against torch.nn.functional.conv3d."""

import jax.numpy as jnp
import pytest

from credit_jax.ops.backend import written_for
from credit_jax.ops.conv3d import conv3d
from tests.support.gradients import assert_same, draw, jax_values, torch_values

torch = pytest.importorskip("torch")

# name: input (depth, height, width, channels), kernel (sizes, channels out), keywords.
CASES = {
    "1x1x1": ((2, 3, 4, 3), (1, 1, 1, 4), {}),
    "3x3x3": ((4, 5, 6, 2), (3, 3, 3, 3), {"padding": ((1, 1),) * 3}),
    "unlike": ((4, 5, 6, 2), (2, 3, 4, 3), {"padding": ((1, 0), (0, 2), (3, 1))}),
    "same": ((4, 5, 6, 2), (1, 2, 5, 3), {"padding": "same"}),
    "same, dilation": (
        (4, 5, 6, 2),
        (2, 3, 2, 3),
        {"padding": "same", "dilation": (1, 2, 3)},
    ),
    "patches": ((2, 8, 12, 3), (2, 4, 4, 5), {"stride": (2, 4, 4)}),
    "patches, points over": ((5, 9, 7, 2), (2, 4, 2, 3), {"stride": (2, 4, 2)}),
    "patches, padding": (
        (3, 9, 7, 2),
        (2, 4, 2, 3),
        {"stride": (2, 4, 2), "padding": ((1, 0), (2, 1), (0, 1))},
    ),
    "patches, groups": (
        (2, 4, 6, 4),
        (2, 2, 2, 2),
        {"stride": (2, 2, 2), "groups": 2},
    ),
    "stride": ((4, 9, 7, 2), (2, 4, 3, 3), {"stride": (1, 2, 2)}),
    "dilation, stride, groups": (
        (5, 9, 7, 4),
        (2, 3, 2, 2),
        {"stride": (1, 2, 3), "dilation": (3, 2, 1), "groups": 2},
    ),
    "patch with dilation": (
        (5, 9, 7, 2),
        (2, 2, 2, 3),
        {"stride": (2, 2, 2), "dilation": (1, 2, 3)},
    ),
}


def torch_conv(x, kernel, *, padding=((0, 0),) * 3, **keywords):
    x, kernel = x.permute(0, 4, 1, 2, 3), kernel.permute(4, 3, 0, 1, 2)
    if padding == "same":
        keywords["padding"] = padding
    else:
        x = torch.nn.functional.pad(x, (*padding[2], *padding[1], *padding[0]))
    return torch.nn.functional.conv3d(x, kernel, **keywords).permute(0, 2, 3, 4, 1)


# torch says on even kernels with "same" that it copies the input.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_convolution_is_that_of_torch(name, backend):
    size, (*kernel, channel_out), keywords = CASES[name]
    x = draw((2, *size))
    shape = (*kernel, size[-1] // keywords.get("groups", 1), channel_out)
    weight = draw(shape, seed=1)
    with written_for(backend):
        actual = jax_values(lambda x, k: conv3d(x, k, **keywords), x, weight)
    expected = torch_values(lambda x, k: torch_conv(x, k, **keywords), x, weight)
    assert_same(actual, expected, name)


def test_same_padding_needs_stride_one():
    x, kernel = jnp.zeros((1, 4, 4, 4, 1)), jnp.zeros((2, 2, 2, 1, 1))
    with pytest.raises(ValueError, match="'same' needs stride 1"):
        conv3d(x, kernel, padding="same", stride=(1, 1, 2))


def test_a_kernel_above_the_field_is_refused():
    x, kernel = jnp.zeros((1, 4, 4, 4, 1)), jnp.zeros((2, 4, 2, 1, 1))
    with pytest.raises(ValueError, match="over 7 points of spatial dim 1, but there"):
        conv3d(x, kernel, dilation=(1, 2, 1), padding=((0, 0), (1, 1), (0, 0)))
