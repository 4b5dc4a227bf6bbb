"""Convolution and its transpose on CPU against torch and the plain definition."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from credit_jax import ops
from credit_jax.kernels.cpu import conv
from credit_jax.ops.conv import NO_PADDING, padding_of_same
from tests.ops.conv_cases import CASES, arrays, of_torch
from tests.support import assert_close
from tests.support.gradients import assert_same, draw, jax_values

FEW = "few points, kernel is stride"


# torch warns for even kernels with "same" that it copies the input.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", CASES)
def test_convolution_is_that_of_torch_and_the_plain_one(name):
    x, kernel, keywords = arrays(name)
    actual = jax_values(lambda x, k: conv.conv2d(x, k, **keywords), x, kernel)
    assert_same(actual, of_torch(x, kernel, keywords), f"{name}, torch")
    plain = jax_values(lambda x, k: ops.conv2d(x, k, **keywords), x, kernel)
    assert_same(actual, plain, f"{name}, plain")


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
    found = conv._faster(x, weights, stride, NO_PADDING)
    assert (found is not None) == fast


def test_groups_are_the_plain_definition():
    x, kernel = jnp.zeros((1, 16, 16, 2)), jnp.zeros((4, 4, 1, 2))
    programs = [
        str(jax.make_jaxpr(partial(conv2d, stride=(2, 2), groups=2))(x, kernel))
        for conv2d in (conv.conv2d, ops.conv2d)
    ]
    assert programs[0] == programs[1]


@pytest.mark.slow(but=["(8, 8)-(3, 3)-False"])
@pytest.mark.parametrize(
    ("size", "kernel", "tap_by_tap"),
    [
        ((2, 4), (3, 3), True),
        ((1, 16), (1, 3), True),
        ((8, 8), (3, 3), False),
        ((16, 32), (3, 3), False),
        ((16, 32), (4, 4), False),
    ],
    ids=str,
)
def test_sizes_of_unit_stride_choose_their_way(size, kernel, tap_by_tap):
    x, weights = jnp.asarray(draw((2, *size, 3))), jnp.asarray(draw((*kernel, 3, 4)))
    pads = tuple(padding_of_same(n) for n in kernel)
    program = str(jax.make_jaxpr(partial(conv.conv2d, padding=pads))(x, weights))
    assert ("conv_general_dilated" not in program) == tap_by_tap

    def plain(x, weights):
        return ops.conv2d(jnp.pad(x, ((0, 0), *pads, (0, 0))), weights)

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
    direct = ops.conv2d(x, kernel, stride=(2, 2))
    assert (conv.conv2d(x, kernel, stride=(2, 2)) == direct).all()


@pytest.mark.parametrize("width", [1, 4, 5, 6])
def test_few_channels_are_made_of_columns_together(width):
    x = jnp.asarray(draw((2, 12, 10 + 2 * width, 3)))
    kernel = jnp.asarray(draw((8, 12, 3, 5), seed=1))
    direct = ops.conv2d(x, kernel, stride=(2, 2))
    wide = conv._columns_together(x, kernel, (2, 2))
    assert wide.shape == direct.shape == (2, 3, width, 5)
    assert_close(wide, direct, 1e-6, f"{width} columns")
    program = str(
        jax.make_jaxpr(conv._columns_together, static_argnums=2)(x, kernel, (2, 2))
    )
    count = min(width, 3)
    assert f"window_strides=(2, {2 * count})" in program
