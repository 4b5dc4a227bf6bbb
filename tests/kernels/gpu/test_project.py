"""The fused projection in interpret mode against the plain definition."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.kernels.gpu import project as fused
from credit_jax.ops.affine import add_bias
from tests.support.errors import relative_error
from tests.support.gradients import assert_same, draw, jax_values

# Rows and channels are not multiples of the tiles; the second has two columns of them.
ROWS, CHANNELS = 300, 40


def _project_kernel(x: Any, skip: Any, kernel: Any, bias: Any) -> Any:
    return fused.project(x, skip, kernel, bias, interpret=True)


def _project_plain(x: Any, skip: Any, kernel: Any, bias: Any) -> Any:
    return skip + add_bias(x @ kernel, bias)


def _arrays(out: int) -> list[np.ndarray]:
    shapes = (2, ROWS, CHANNELS), (2, ROWS, out), (CHANNELS, out), (out,)
    return [draw(shape, seed) for seed, shape in enumerate(shapes)]


CASES = {
    "few channels": (_project_kernel, _project_plain, partial(_arrays, 24)),
    "two tiles": (_project_kernel, _project_plain, partial(_arrays, 160)),
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


def test_more_rows_than_a_grid_has_programs_along_its_second_dim() -> None:
    """CUDA has 65,535, which are tiles of 8.4 million rows; the first dim has 2^31."""
    rows = 128 * 70_000

    def call(*arrays: Any) -> Any:
        return fused.project(*arrays, interpret=False)

    shapes = (rows, 16), (rows, 16), (16, 16), (16,)
    arrays = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    (grid,) = re.findall(r"grid=\(([\d, ]+)\)", str(jax.make_jaxpr(call)(*arrays)))
    assert [int(n) for n in grid.split(",") if n.strip()] == [70_000]
