"""Kernels for CPUs beside the definitions."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax import ops
from credit_jax.kernels.cpu import conv
from credit_jax.kernels.cpu.conv import conv2d, conv3d
from credit_jax.kernels.cpu.fourier_conv import Tiles, fourier_conv
from credit_jax.ops.conv import NO_PADDING
from tests.ops.conv3d_cases import CASES as CASES_of_conv3d
from tests.ops.conv3d_cases import arrays as arrays_of_conv3d
from tests.ops.conv3d_cases import of_torch as of_torch_of_conv3d
from tests.ops.conv_cases import CASES, arrays, of_torch
from tests.support import assert_close, relative_error
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
    pads = tuple(((n - 1) // 2, n // 2) for n in kernel)
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


# Convolution of three dims on CPU against torch and the plain definition.


# torch warns for even kernels with "same" that it copies the input.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", CASES_of_conv3d)
def test_convolution_is_that_of_torch_and_the_plain_one_conv3d(name):
    x, kernel, keywords = arrays_of_conv3d(name)
    actual = jax_values(lambda x, k: conv3d(x, k, **keywords), x, kernel)
    assert_same(actual, of_torch_of_conv3d(x, kernel, keywords), f"{name}, torch")
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


# Gradients of convolutions on CPU: their layout, and the plain definition's values.


FAST = {"(0, 3, 1, 2)", "(3, 2, 0, 1)", "(0, 4, 1, 2, 3)", "(4, 3, 0, 1, 2)"}


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize(("stride", "taps"), [(1, 4), (2, 4), (2, 3), (3, 2)])
@pytest.mark.parametrize(
    "padding",
    [
        pytest.param((0, 0), marks=pytest.mark.slow),
        pytest.param((1, 1), marks=pytest.mark.slow),
        (0, 2),
        (7, 4),
    ],
)
def test_gradients_have_the_layout_that_is_fast_in_loops(
    stride, taps, padding, dilation
):
    """XLA rewrites other layouts outside of loops alone, and makes plain loops else."""
    keywords = {"stride": 2 * (stride,), "padding": 2 * (padding,)}
    if dilation > 1:
        keywords["dilation"] = 2 * (dilation,)
    x = jnp.asarray(draw((2, 12, 17, 3)))
    kernel = jnp.asarray(draw((taps, taps, 3, 5), seed=1))
    _check(conv.conv2d, ops.conv2d, x, kernel, keywords)


@pytest.mark.slow(but=["2-3"])
@pytest.mark.parametrize(("stride", "taps"), [(1, 3), (2, 4), (2, 3), (3, 2)])
def test_in_float64_no_points_are_spread(stride, taps):
    """Of such convolutions XLA makes plain loops."""
    keywords = {"stride": (stride, 1), "padding": ((1, 0), (4, 3))}
    with jax.enable_x64(True):
        x = jnp.asarray(draw((2, 12, 17, 3)), jnp.float64)
        kernel = jnp.asarray(draw((taps, taps, 3, 5), seed=1), jnp.float64)
        program = _check(conv.conv2d, ops.conv2d, x, kernel, keywords, 1e-13)
    assert set(re.findall(r"lhs_dilation=(\([\d, ]+\))", program)) == {"(1, 1)"}


@pytest.mark.slow
def test_three_dims():
    x = jnp.asarray(draw((2, 4, 6, 7, 3)))
    kernel = jnp.asarray(draw((2, 3, 3, 3, 5), seed=1))
    keywords = {"padding": ((0, 1), (1, 1), (0, 4))}
    _check(conv.conv3d, ops.conv3d, x, kernel, keywords)


def _check(fast, plain, x, kernel, keywords, bound=1e-6):
    def gradient(convolution):
        def loss(x, kernel):
            return jnp.sum(jnp.sin(convolution(x, kernel, **keywords)))

        return jax.grad(loss, (0, 1))

    program = str(jax.make_jaxpr(gradient(fast))(x, kernel))
    layouts = set(re.findall(r"(?:lhs|rhs|out)_spec=(\([\d, ]+\))", program))
    assert layouts, "no convolution"
    assert layouts <= FAST
    actual, expected = (gradient(c)(x, kernel) for c in (fast, plain))
    for name, a, e in zip(("x", "the kernel"), actual, expected, strict=True):
        assert_close(a, e, bound, f"gradient by {name}")
    return program


# Convolution by Fourier transforms against the direct sum, and when it is chosen.


# name: input (height, width), kernel (height, width), stride.
CASES_FOURIER_CONV = {
    "one tile": ((9, 40), (4, 8), (2, 2)),
    "three tiles": ((9, 160), (4, 8), (2, 2)),
    "three tiles, the last not full": ((9, 155), (4, 8), (2, 2)),
    "rows and columns left over": ((12, 45), (6, 8), (3, 4)),
    "stride 1 down": ((7, 60), (5, 16), (1, 2)),
    "one row of taps": ((6, 50), (2, 16), (2, 1)),
    "one point": ((8, 16), (8, 16), (2, 2)),
    "more columns than a row of taps needs": ((4, 300), (2, 4), (2, 4)),
}


def direct_sum(x, kernel, stride):
    return ops.conv2d(x, kernel, stride=stride)


@pytest.mark.slow(but=["three tiles, the last not full", "stride 1 down", "one point"])
@pytest.mark.parametrize("name", CASES_FOURIER_CONV)
def test_it_is_the_direct_sum(name):
    size, taps, stride = CASES_FOURIER_CONV[name]
    with jax.enable_x64(True):
        x = jnp.asarray(draw((2, *size, 3), dtype=np.float64))
        kernel = jnp.asarray(draw((*taps, 3, 5), seed=1, dtype=np.float64))
        found, pull = jax.vjp(jax.jit(lambda *g: fourier_conv(*g, stride)), x, kernel)
        direct, pull_direct = jax.vjp(lambda *g: direct_sum(*g, stride), x, kernel)
        assert found.dtype == np.float64
        assert_close(found, direct, 1e-13, f"{name}, value")
        cotangent = jnp.asarray(draw(direct.shape, dtype=np.float64))
        pairs = zip(pull(cotangent), pull_direct(cotangent), strict=True)
        for what, (a, e) in zip(("x", "kernel"), pairs, strict=True):
            assert_close(a, e, 1e-13, f"{name}, gradient by {what}")


def test_it_rounds_as_the_direct_sum_does():
    """Against float64, for an input whose mean is much larger than its variation."""
    x = jnp.asarray(300 + draw((1, 12, 220, 4)))
    kernel = jnp.asarray(draw((8, 32, 4, 3), seed=1))
    ways = {"direct": direct_sum, "Fourier": fourier_conv}
    made = {name: np.asarray(way(x, kernel, (2, 2))) for name, way in ways.items()}
    with jax.enable_x64(True):
        wide = jnp.asarray(x, np.float64), jnp.asarray(kernel, np.float64)
        exact = np.asarray(direct_sum(*wide, (2, 2)))
    errors = {name: relative_error(value, exact) for name, value in made.items()}
    print(errors)
    assert errors["Fourier"] < max(3 * errors["direct"], 1e-6)


@pytest.mark.parametrize(
    ("width", "kernel", "stride", "dtype", "taken"),
    [
        (400, 32, 2, jnp.float32, True),
        (400, 16, 2, jnp.float32, True),
        (400, 8, 2, jnp.float32, False),
        (40, 32, 2, jnp.float32, False),
        (400, 32, 2, jnp.bfloat16, False),
    ],
)
def test_it_is_taken_where_it_multiplies_less(width, kernel, stride, dtype, taken):
    x = jnp.zeros((1, kernel, width, 2), dtype)
    weights = jnp.zeros((kernel, kernel, 2, 4), dtype)
    strides = stride, stride
    program = jax.make_jaxpr(lambda x, w: conv2d(x, w, stride=strides))(x, weights)
    assert ("conv_general_dilated" not in str(program)) == taken


@pytest.mark.parametrize(
    ("width", "taps"), [(1, 1), (1, 16), (5, 2), (96, 16), (97, 1)]
)
def test_tiles_make_every_column(width, taps):
    tiles = Tiles.of(width, taps)
    assert tiles.count * tiles.width >= width > (tiles.count - 1) * tiles.width
    assert tiles.size >= tiles.width + taps - 1
    assert tiles.size % 2 == 0
