"""Convolution by Fourier transforms against the direct sum, and when it is chosen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax import ops
from credit_jax.kernels.cpu.conv import conv2d
from credit_jax.kernels.cpu.fourier_conv import Tiles, fourier_conv
from tests.support import assert_close, relative_error
from tests.support.gradients import draw

# name: input (height, width), kernel (height, width), stride.
CASES = {
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
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_direct_sum(name):
    size, taps, stride = CASES[name]
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
