"""Kernels for CPUs beside the definitions."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax import ops
from credit_jax.kernels.cpu import conv
from credit_jax.kernels.cpu.fourier_conv import fourier_conv
from credit_jax.ops.conv import NO_PADDING
from tests.ops.cases import CONV
from tests.ops.cases import conv as case
from tests.support import assert_close, relative_error
from tests.support.gradients import assert_same, draw, jax_values, torch_values


# torch warns for even kernels with "same" that it copies the input.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", [n for n, row in CONV.items() if len(row.size) == 3])
def test_values_and_gradients_are_torchs(name, torch):
    row = CONV[name]
    expected = torch_values(row.theirs, *row.arrays())
    assert_same(jax_values(row.bind(conv.conv2d), *row.arrays()), expected, name)


@pytest.mark.parametrize(
    ("stride", "kernel", "fast"),
    [((2, 2), (4, 4), True), ((2, 2), (3, 3), False), ((4, 2), (8, 2), True)],
)
def test_only_kernels_the_stride_divides_take_the_fast_gradient(stride, kernel, fast):
    x, weights = jnp.zeros((1, 16, 16, 1)), jnp.zeros((*kernel, 1, 1))
    found = conv._faster(x, weights, stride, NO_PADDING)
    assert (found is not None) == fast
    direct = ops.conv2d(x + 0.3, weights + 0.1, stride=stride)
    assert (conv.conv2d(x + 0.3, weights + 0.1, stride=stride) == direct).all()
    x, weights = jnp.zeros((1, 16, 16, 2)), jnp.zeros((*kernel, 1, 2))
    programs = [
        str(jax.make_jaxpr(partial(function, stride=stride, groups=2))(x, weights))
        for function in (conv.conv2d, ops.conv2d)
    ]
    assert programs[0] == programs[1], "groups are the plain definition"


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "dtype", "is_direct"),
    [
        # One product for each tap.
        ((2, 4), (3, 3), 1, jnp.float32, False),
        ((1, 16), (1, 3), 1, jnp.float32, False),
        ((8, 8), (3, 3), 1, jnp.float32, True),
        ((16, 32), (4, 4), 1, jnp.float32, True),
        # Fourier transforms where they multiply less.
        ((32, 400), (32, 32), 2, jnp.float32, False),
        ((16, 400), (16, 16), 2, jnp.float32, False),
        ((8, 400), (8, 8), 2, jnp.float32, True),
        ((32, 40), (32, 32), 2, jnp.float32, True),
        ((32, 400), (32, 32), 2, jnp.bfloat16, True),
    ],
)
def test_other_ways_are_taken_where_they_are_faster(
    size, kernel, stride, dtype, is_direct
):
    x, weights = jnp.zeros((2, *size, 2), dtype), jnp.zeros((*kernel, 2, 4), dtype)
    pads = tuple(((n - 1) // 2, n // 2) if stride == 1 else (0, 0) for n in kernel)
    run = partial(conv.conv2d, stride=(stride, stride), padding=pads)
    program = str(jax.make_jaxpr(run)(x, weights))
    assert ("conv_general_dilated" in program) == is_direct


def test_gradients_of_few_points_are_one_product_and_by_kernels_of_padded_fields():
    def count(out):
        x, kernel = jnp.zeros((1, 5, 6, 2)), jnp.zeros((3, 3, 2, out))
        _, pull = jax.vjp(partial(conv.conv2d, padding=((1, 1), (1, 1))), x, kernel)
        program = jax.jit(pull).lower(jnp.zeros((1, 5, 6, out))).compile().as_text()
        return [program.count(word) for word in (" convolution(", " pad=", " dot(")]

    assert count(30) == [1, 0, 1]
    assert count(29) == [2, 1, 0]


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


# Gradients of convolutions on CPU: their layout, and the plain definition's values.


FAST = {"(0, 3, 1, 2)", "(3, 2, 0, 1)", "(0, 4, 1, 2, 3)", "(4, 3, 0, 1, 2)"}


@pytest.mark.parametrize(
    ("stride", "taps", "padding", "dilation"),
    [
        *(
            (1, 4, (7, 4), 1),
            (2, 4, 0, 1),
            (2, 3, (0, 2), 1),
            (3, 2, (7, 4), 1),
            (1, 4, 0, 2),
        ),
        *((2, 4, (0, 2), 2), (2, 3, (7, 4), 2), (3, 2, (0, 2), 2), (2, 3, 0, 1)),
    ],
)
def test_gradients_have_the_layout_that_is_fast_in_loops(
    stride, taps, padding, dilation
):
    """XLA rewrites other layouts outside of loops alone, and makes plain loops else."""
    settings = {"stride": stride, "padding": (padding,) * 2, "dilation": dilation}
    layouts_of_gradient(case((12, 17, 3), (taps, taps, 5), **settings), 1e-6)


@pytest.mark.slow(but=["2-3"])
@pytest.mark.parametrize(("stride", "taps"), [(1, 3), (2, 4), (2, 3), (3, 2)])
def test_in_float64_no_points_are_spread(stride, taps):
    """Of such convolutions XLA makes plain loops."""
    pads = ((1, 0), (4, 3))
    row = case((12, 17, 3), (taps, taps, 5), stride=(stride, 1), padding=pads)
    with jax.enable_x64(True):
        program = layouts_of_gradient(row, 1e-13, np.float64)
    assert set(re.findall(r"lhs_dilation=(\([\d, ]+\))", program)) == {"(1, 1)"}


def layouts_of_gradient(row, bound, dtype=np.float32):
    arrays = [jnp.asarray(array, dtype) for array in row.arrays()]

    def gradient(function):
        bound = row.bind(function)
        return jax.grad(lambda *given: jnp.sum(jnp.sin(bound(*given))), (0, 1))

    fast = gradient(conv.conv2d)
    plain = gradient(ops.conv2d)
    program = str(jax.make_jaxpr(fast)(*arrays))
    layouts = set(re.findall(r"(?:lhs|rhs|out)_spec=(\([\d, ]+\))", program))
    assert layouts, "no convolution"
    assert layouts <= FAST
    for actual, expected in zip(fast(*arrays), plain(*arrays), strict=True):
        assert_close(actual, expected, bound, "gradient")
    return program


# Convolution by Fourier transforms against the direct sum, and when it is chosen.


# name: input (height, width), kernel (height, width), stride.
TILED = {
    "one tile": ((9, 40), (4, 8), (2, 2)),
    "three tiles": ((9, 160), (4, 8), (2, 2)),
    "three tiles, the last not full": ((9, 155), (4, 8), (2, 2)),
    "rows and columns left over": ((12, 45), (6, 8), (3, 4)),
    "stride 1 down": ((7, 60), (5, 16), (1, 2)),
    "one row of taps": ((6, 50), (2, 16), (2, 1)),
    "one point": ((8, 16), (8, 16), (2, 2)),
    "more columns than a row of taps needs": ((4, 300), (2, 4), (2, 4)),
}


@pytest.mark.slow(but=["three tiles, the last not full", "stride 1 down", "one point"])
@pytest.mark.parametrize("name", TILED)
def test_fourier_transforms_are_the_direct_sum(name):
    size, taps, stride = TILED[name]
    with jax.enable_x64(True):
        x = draw((2, *size, 3), dtype=np.float64)
        kernel = draw((*taps, 3, 5), seed=1, dtype=np.float64)
        found = jax_values(lambda *given: fourier_conv(*given, stride), x, kernel)
        direct = jax_values(partial(ops.conv2d, stride=stride), x, kernel)
    assert found[0].dtype == np.float64
    assert_same(found, direct, name, value=1e-13, gradient=1e-13)


def test_it_rounds_as_the_direct_sum_does():
    """Against float64, for an input whose mean is much larger than its variation."""
    x = jnp.asarray(300 + draw((1, 12, 220, 4)))
    kernel = jnp.asarray(draw((8, 32, 4, 3), seed=1))
    made = {
        "direct": np.asarray(ops.conv2d(x, kernel, stride=(2, 2))),
        "Fourier": np.asarray(fourier_conv(x, kernel, (2, 2))),
    }
    with jax.enable_x64(True):
        wide = jnp.asarray(x, np.float64), jnp.asarray(kernel, np.float64)
        exact = np.asarray(ops.conv2d(*wide, stride=(2, 2)))
    errors = {name: relative_error(value, exact) for name, value in made.items()}
    print(errors)
    assert errors["Fourier"] < max(3 * errors["direct"], 1e-6)
