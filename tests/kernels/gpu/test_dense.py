"""Products whose kernel gradient is accumulated over groups of rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.compiled_step import equations
from credit_jax.kernels.gpu import dense
from credit_jax.ops.dense import dense as plain
from tests.support.gradients import assert_same, draw, jax_values


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize("dtype", [None, jnp.float32])
def test_value_and_gradients_are_those_of_the_plain_definition(dtype: Any) -> None:
    x, kernel = draw((2, 2100, 24)), draw((24, 3, 4), 1)
    ours, theirs = (
        jax_values(partial(f, dtype=dtype), x, kernel) for f in (dense.dense, plain)
    )
    assert_same(ours, theirs, "dense", gradient=1e-6)


@pytest.mark.usefixtures("groups")
def test_rows_are_added_in_float32() -> None:
    """A 16-bit sum of 8192 ones stops at 256."""
    ones = jnp.ones((8192, 4), jnp.bfloat16)
    gradient = jax.jit(dense.kernel_gradient)(ones, ones)
    assert gradient.dtype == jnp.float32
    assert np.all(gradient == 8192)


@pytest.mark.parametrize("rows", [288_000, 9000, 4099])
def test_groups_divide_the_rows(rows: int) -> None:
    x, cotangent = (jax.ShapeDtypeStruct((rows, n), jnp.bfloat16) for n in (128, 384))
    gradient = jax.eval_shape(dense.kernel_gradient, x, cotangent)
    assert (gradient.shape, gradient.dtype) == ((128, 384), jnp.float32)


@pytest.mark.parametrize("rows", [64, dense.MANY_ROWS])
def test_a_wide_result_has_products_of_narrow_factors(rows: int) -> None:
    """Of a sum over devices: it is rounded, so its cotangent has few digits."""

    def loss(x: Any, kernel: Any) -> Any:
        return dense.dense(x, kernel, dtype=jnp.float32).astype(x.dtype).sum()

    arrays = [jnp.ones(shape, jnp.bfloat16) for shape in ((rows, 32), (32, 16))]
    program = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(*arrays)
    products = [
        e for e in equations(program.jaxpr) if e.primitive.name == "dot_general"
    ]
    assert len(products) == 3
    dtypes = {var.aval.dtype for e in products for var in e.invars}
    assert dtypes == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize(
    ("rows", "channels", "out", "groups"),
    [
        # A few tiles: enough groups that each multiprocessor has a tile.
        (288_000, 128, 384, 44),
        (18_000, 512, 2048, 2),
        # The tiles fill a GPU.
        (4500, 1024, 4096, 1),
        # On an eighth of the rows sums of groups would move more than the factors.
        (2250, 512, 2048, 1),
        (7, 8, 8, 1),
    ],
)
def test_groups_of_wxformer(rows: int, channels: int, out: int, groups: int) -> None:
    assert dense.num_groups(rows, channels, out, itemsize=2) == groups


def test_candidates_alone_are_taken() -> None:
    divisors = [g for g in range(1, 100) if 288_000 % g == 0]
    found = dense.num_groups(288_000, 128, 384, itemsize=2, candidates=divisors)
    assert found == 40
