"""Convolution against torch.nn.functional.conv2d: values and gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from credit_jax.ops import conv
from credit_jax.ops.backend import written_for
from tests.support import assert_close
from tests.support.gradients import assert_same, draw, jax_values, torch_values

torch = pytest.importorskip("torch")

# name: input (height, width, channels), kernel (height, width, channels out), keywords.
CASES = {
    "1x1": ((5, 6, 3), (1, 1, 4), {}),
    "3x3 same": ((7, 8, 3), (3, 3, 4), {"padding": ((1, 1), (1, 1))}),
    "3x3 valid": ((7, 8, 3), (3, 3, 4), {}),
    "even kernel": ((9, 8, 2), (4, 2, 3), {}),
    "even kernel, uneven padding": (
        (9, 8, 2),
        (4, 2, 3),
        {"padding": ((1, 2), (0, 1))},
    ),
    "one side only": ((6, 6, 2), (3, 3, 2), {"padding": ((2, 0), (0, 2))}),
    "stride 2, kernel 2": ((8, 10, 3), (2, 2, 4), {"stride": (2, 2)}),
    "stride 2, kernel 3": (
        (9, 10, 3),
        (3, 3, 4),
        {"stride": (2, 2), "padding": ((1, 1), (1, 1))},
    ),
    "stride 2, kernel 4": (
        (8, 10, 3),
        (4, 4, 4),
        {"stride": (2, 2), "padding": ((1, 1), (1, 1))},
    ),
    "stride 2 leaves a row over": ((9, 11, 3), (4, 4, 4), {"stride": (2, 2)}),
    "stride 4 leaves three over": ((23, 19, 2), (8, 4, 3), {"stride": (4, 4)}),
    "stride 4, kernel 32": (
        (40, 44, 2),
        (32, 32, 2),
        {"stride": (4, 4), "padding": ((14, 14), (14, 14))},
    ),
    "stride 4, kernel 16": (
        (21, 20, 2),
        (16, 16, 2),
        {"stride": (4, 4), "padding": ((6, 6), (6, 6))},
    ),
    "stride 2, many columns": (
        (10, 201, 3),
        (6, 32, 4),
        {"stride": (2, 2), "padding": ((2, 2), (15, 15))},
    ),
    "stride 3 and 2, many columns, some left over": (
        (14, 150, 2),
        (9, 16, 3),
        {"stride": (3, 2), "padding": ((1, 0), (3, 4))},
    ),
    "stride above the kernel": ((11, 12, 2), (2, 2, 3), {"stride": (4, 4)}),
    "stride of one dim": ((9, 8, 2), (2, 3, 3), {"stride": (2, 1)}),
    "unlike strides": ((12, 13, 2), (4, 6, 3), {"stride": (2, 3)}),
    "kernel as large as the input": ((6, 5, 2), (6, 5, 3), {}),
    "dilation": (
        (11, 12, 2),
        (3, 3, 3),
        {"dilation": (2, 3), "padding": ((2, 2), (3, 3))},
    ),
    "dilation and stride": (
        (13, 12, 2),
        (2, 2, 3),
        {"dilation": (3, 2), "stride": (2, 2)},
    ),
    "groups": ((6, 7, 4), (3, 3, 6), {"groups": 2, "padding": ((1, 1), (1, 1))}),
    "depthwise, stride 2": (
        (8, 8, 4),
        (2, 2, 4),
        {"groups": 4, "stride": (2, 2)},
    ),
    "few points, many channels": (
        (4, 5, 3),
        (4, 3, 24),
        {"padding": ((2, 1), (0, 1))},
    ),
    "few points, wide padding": ((2, 3, 2), (3, 3, 98), {"padding": ((3, 2), (2, 4))}),
    "same": ((6, 7, 2), (3, 5, 3), {"padding": "same"}),
    "same, even kernel": ((6, 7, 2), (4, 2, 3), {"padding": "same"}),
    "same, dilation": ((6, 7, 2), (4, 3, 3), {"padding": "same", "dilation": (3, 2)}),
}


def torch_conv(x, kernel, *, stride=(1, 1), padding=((0, 0), (0, 0)), **keywords):
    x, kernel = x.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1)
    if padding == "same":
        keywords["padding"] = padding
    else:
        x = torch.nn.functional.pad(x, (*padding[1], *padding[0]))
    out = torch.nn.functional.conv2d(x, kernel, stride=stride, **keywords)
    return out.permute(0, 2, 3, 1)


# torch says on even kernels with "same" that it copies the input.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_convolution_is_that_of_torch(name, backend):
    size, (kernel_h, kernel_w, channel_out), keywords = CASES[name]
    x = draw((2, *size))
    group_in = size[2] // keywords.get("groups", 1)
    kernel = draw((kernel_h, kernel_w, group_in, channel_out), seed=1)
    with written_for(backend):
        actual = jax_values(lambda x, k: conv.conv2d(x, k, **keywords), x, kernel)
    expected = torch_values(lambda x, k: torch_conv(x, k, **keywords), x, kernel)
    assert_same(actual, expected, name)


@pytest.mark.parametrize(
    ("stride", "kernel", "fast"),
    [
        ((2, 2), (4, 4), True),
        ((2, 2), (3, 3), False),
        ((4, 2), (8, 2), True),
        ((4, 4), (4, 6), False),
    ],
)
def test_only_kernels_the_stride_divides_take_the_fast_gradient(stride, kernel, fast):
    x, weights = jnp.zeros((1, 16, 16, 1)), jnp.zeros((*kernel, 1, 1))
    given = x, weights, stride, conv.NO_PADDING
    assert (conv._fast_on_cpu(*given, (1, 1), 1) is not None) == fast
    assert conv._fast_on_cpu(*given, (2, 2), 1) is None
    assert conv._fast_on_cpu(*given, (1, 1), 2) is None


@pytest.mark.parametrize(
    ("size", "kernel", "tap_by_tap"),
    [
        ((2, 4), (3, 3), True),
        ((1, 16), (1, 3), True),
        ((8, 8), (3, 3), False),
        ((16, 32), (3, 3), False),
        ((16, 32), (4, 4), False),
    ],
)
def test_sizes_of_unit_stride_choose_their_way(size, kernel, tap_by_tap):
    x, weights = jnp.asarray(draw((2, *size, 3))), jnp.asarray(draw((*kernel, 3, 4)))
    pads = tuple(conv.same_padding(n) for n in kernel)
    program = str(jax.make_jaxpr(partial(conv.conv2d, padding=pads))(x, weights))
    assert ("conv_general_dilated" not in program) == tap_by_tap

    def plain(x, weights):
        return conv._direct(jnp.pad(x, ((0, 0), *pads, (0, 0))), weights, (1, 1))

    def fast(x, weights):
        return conv.conv2d(x, weights, padding=pads)

    value, pull = jax.vjp(fast, x, weights)
    direct, pull_direct = jax.vjp(plain, x, weights)
    assert_close(value, direct, 1e-6, "value")
    cotangent = jnp.asarray(draw(value.shape))
    names = "gradient by x", "gradient by the kernel"
    for name, a, e in zip(names, pull(cotangent), pull_direct(cotangent), strict=True):
        assert_close(a, e, 1e-5, name)


def test_gradients_of_few_points_are_one_product_and_by_kernels_of_padded_fields():
    def count(out):
        x, kernel = jnp.zeros((1, 5, 6, 2)), jnp.zeros((3, 3, 2, out))
        _, pull = jax.vjp(partial(conv.conv2d, padding=((1, 1), (1, 1))), x, kernel)
        program = jax.jit(pull).lower(jnp.zeros((1, 5, 6, out))).compile().as_text()
        return [program.count(word) for word in (" convolution(", " pad=", " dot(")]

    assert count(30) == [1, 0, 1]
    assert count(29) == [2, 1, 0]


def test_the_fast_gradient_runs_the_direct_forward():
    x, kernel = jnp.asarray(draw((1, 9, 9, 2))), jnp.asarray(draw((4, 4, 2, 3)))
    direct = conv._direct(x, kernel, (2, 2))
    assert (conv.conv2d(x, kernel, stride=(2, 2)) == direct).all()


@pytest.mark.parametrize("width", [1, 4, 5, 6])
def test_few_channels_are_made_of_columns_together(width):
    x = jnp.asarray(draw((2, 12, 10 + 2 * width, 3)))
    kernel = jnp.asarray(draw((8, 12, 3, 5), seed=1))
    direct = conv._direct(x, kernel, (2, 2))
    wide = conv._wide(x, kernel, (2, 2))
    assert wide.shape == direct.shape == (2, 3, width, 5)
    assert_close(wide, direct, 1e-6, f"{width} columns")
    program = str(jax.make_jaxpr(conv._wide, static_argnums=2)(x, kernel, (2, 2)))
    count = min(width, 3)
    assert f"window_strides=(2, {2 * count})" in program


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
    size = conv.conv_out_size(size, kernel, stride, padding, dilation)
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
