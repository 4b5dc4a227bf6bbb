"""Gradients of convolutions on CPU: their layout, and the plain definition's values."""

import re

import jax
import jax.numpy as jnp
import pytest

from credit_jax import ops
from credit_jax.kernels.cpu import conv
from tests.support import assert_close
from tests.support.gradients import draw

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
