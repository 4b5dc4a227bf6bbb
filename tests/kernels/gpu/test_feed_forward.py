"""Fused feed-forward kernels in interpret mode against the plain definition."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.kernels.gpu import feed_forward as fused
from credit_jax.kernels.gpu.matmul import distribution
from credit_jax.ops.affine import add_bias
from credit_jax.ops.gelu import gelu
from tests.support.errors import relative_error
from tests.support.gradients import assert_same, draw, jax_values

# Rows, channels and hidden channels are not multiples of the tiles.
ROWS, CHANNELS, HIDDEN = 300, 40, 160


def _arrays() -> list[np.ndarray]:
    shapes = (2, ROWS, CHANNELS), (2, ROWS, CHANNELS), (CHANNELS, HIDDEN), (HIDDEN,)
    shapes += (HIDDEN, CHANNELS), (CHANNELS,)
    scales = 1, 1, 0.1, 1, 0.1, 1
    pairs = enumerate(zip(shapes, scales, strict=True))
    return [np.float32(scale) * draw(shape, seed) for seed, (shape, scale) in pairs]


def _kernel(x: Any, skip: Any, *weights: Any) -> Any:
    return fused.feed_forward(x, skip, weights[:2], weights[2:], interpret=True)


def _plain(x: Any, skip: Any, up: Any, up_bias: Any, down: Any, down_bias: Any) -> Any:
    hidden = gelu(add_bias(x @ up, up_bias))
    return skip + add_bias(hidden @ down, down_bias)


def _project_kernel(x: Any, skip: Any, kernel: Any, bias: Any) -> Any:
    return fused.project(x, skip, kernel, bias, interpret=True)


def _project_plain(x: Any, skip: Any, kernel: Any, bias: Any) -> Any:
    return skip + add_bias(x @ kernel, bias)


def _projection() -> list[np.ndarray]:
    shapes = (2, ROWS, CHANNELS), (2, ROWS, 24), (CHANNELS, 24), (24,)
    return [draw(shape, seed) for seed, shape in enumerate(shapes)]


CASES = {
    "feed-forward": (_kernel, _plain, _arrays),
    "projection": (_project_kernel, _project_plain, _projection),
}


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients_are_those_of_the_definition(name: str) -> None:
    kernel, plain, arrays = CASES[name]
    ours, theirs = (jax_values(f, *arrays()) for f in (kernel, plain))
    assert_same(ours, theirs, name, value=1e-6, gradient=1e-6)


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("name", CASES)
def test_bfloat16_is_as_near_to_float32_as_the_definition(name: str) -> None:
    kernel, plain, arrays = CASES[name]
    narrow = [np.asarray(jnp.asarray(a, jnp.bfloat16)) for a in arrays()]
    value, gradients = jax_values(plain, *(a.astype(np.float32) for a in narrow))
    errors = []
    for function in (kernel, plain):
        ours, by_array = jax_values(function, *narrow)
        pairs = zip((ours, *by_array), (value, *gradients), strict=True)
        errors.append([relative_error(a.astype(np.float32), e) for a, e in pairs])
    for ours, theirs in zip(*errors, strict=True):
        assert ours <= 1.01 * theirs, f"{name}: {errors[0]}, plain {errors[1]}"


def test_the_distribution_is_that_of_erf() -> None:
    x = jnp.linspace(-7.0, 7.0, 10_001, dtype=jnp.float32)
    exact = jax.scipy.stats.norm.cdf(x)
    assert float(jnp.abs(distribution(x) - exact).max()) < 2.5e-7
