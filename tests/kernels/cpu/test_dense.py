"""Products of few rows against torch, on one device and on a mesh."""

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.sharding import PartitionSpec as P

from credit_jax import kernels
from credit_jax.kernels.cpu.dense import dense
from credit_jax.ops.dense import dense as plain
from credit_jax.parallel.mesh.axes import DP_SHARD
from tests.ops.test_dense import CASES
from tests.support import assert_close
from tests.support.gradients import assert_same, draw, jax_values, torch_values
from tests.support.meshes import make_mesh


@pytest.mark.parametrize("case", CASES)
def test_product_is_that_of_torch_and_the_plain_one(case):
    x, kernel = (draw(shape) for shape in CASES[case])
    actual = jax_values(dense, x, kernel)
    expected = torch_values(lambda x, k: torch.tensordot(x, k, 1), x, kernel)
    assert_same(actual, expected, f"{case}, torch")
    assert_same(actual, jax_values(plain, x, kernel), f"{case}, plain")


@pytest.mark.parametrize("rows", [5, 40])
def test_the_gradient_by_few_rows_reads_the_kernel_along_its_rows(rows):
    x, kernel = jnp.zeros((rows, 30)), jnp.zeros((30, 20))
    _, pull = jax.vjp(dense, x, kernel)
    program = str(jax.make_jaxpr(pull)(jnp.zeros((rows, 20))))
    assert ("optimization_barrier" in program) == (rows == 5)
    _, pull = jax.vjp(plain, x, kernel)
    program = str(jax.make_jaxpr(pull)(jnp.zeros((rows, 20))))
    assert "optimization_barrier" not in program


@pytest.mark.slow(but=["rows-4", "columns-40", "sums-4"])
@pytest.mark.parametrize("rows", [4, 40])
@pytest.mark.parametrize("split", ["rows", "columns", "sums"])
def test_gradients_on_a_mesh_are_those_of_one_device(rows, split):
    x, kernel = (jnp.asarray(draw(shape)) for shape in ((rows, 24), (24, 16)))
    weights = jnp.asarray(draw((rows, 16)))
    of_x, of_kernel, of_value = {
        "rows": (P(DP_SHARD), P(), P(DP_SHARD)),
        "columns": (P(), P(None, DP_SHARD), P(None, DP_SHARD)),
        "sums": (P(None, DP_SHARD), P(DP_SHARD), P()),
    }[split]

    def product(x, kernel):
        made = kernels.dense(x, kernel)
        return jax.lax.psum(made, DP_SHARD) if split == "sums" else made

    sharded = jax.shard_map(
        product, mesh=make_mesh(dp=2), in_specs=(of_x, of_kernel), out_specs=of_value
    )
    value, pull = jax.vjp(sharded, x, kernel)
    expected, pull_expected = jax.vjp(jnp.matmul, x, kernel)
    assert_close(value, expected, 1e-6, split)
    both = zip(pull(weights), pull_expected(weights), strict=True)
    for name, (a, e) in zip(("by x", "by the kernel"), both, strict=True):
        assert_close(a, e, 1e-5, f"{split}, gradient {name}")


def test_sums_may_be_wider_than_the_factors():
    x, kernel = jnp.ones((3, 600), jnp.bfloat16), jnp.ones((600, 2), jnp.bfloat16)
    wide = dense(x, kernel, dtype=jnp.float32)
    assert wide.dtype == jnp.float32
    assert (wide == 600).all()
