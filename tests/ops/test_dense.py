"""Products over channels, for any number of dims of both factors."""

import jax
import jax.numpy as jnp
import pytest

from credit_jax.ops.dense import dense
from tests.support import assert_close
from tests.support.gradients import draw

CASES = {
    "matrix": ((5, 4), (4, 3)),
    "field": ((2, 3, 5, 4), (4, 6)),
    "heads": ((2, 3, 4), (4, 3, 2, 5)),
    "vector": ((4,), (4, 3)),
    "few rows": ((2, 3, 20), (20, 3, 4)),
}


@pytest.mark.parametrize("case", CASES)
def test_product_is_that_of_tensordot(case):
    x, kernel = (jnp.asarray(draw(shape)) for shape in CASES[case])
    value, pull = jax.vjp(dense, x, kernel)
    expected, pull_expected = jax.vjp(lambda x, k: jnp.tensordot(x, k, 1), x, kernel)
    assert_close(value, expected, 1e-6, case)
    cotangent = jnp.asarray(draw(value.shape))
    both = zip(pull(cotangent), pull_expected(cotangent), strict=True)
    for name, (a, e) in zip(("by x", "by the kernel"), both, strict=True):
        assert_close(a, e, 1e-5, f"{case}, gradient {name}")


def test_the_gradient_by_the_kernel_sums_over_one_dim():
    def grad(x, kernel):
        return jax.grad(lambda k: jnp.sum(dense(x, k)))(kernel)

    program = str(jax.make_jaxpr(grad)(jnp.zeros((2, 3, 5, 4)), jnp.zeros((4, 6))))
    assert "([0], [0])" in program


def test_sums_may_be_wider_than_the_factors():
    x, kernel = jnp.ones((3, 600), jnp.bfloat16), jnp.ones((600, 2), jnp.bfloat16)
    assert dense(x, kernel).dtype == jnp.bfloat16
    wide = dense(x, kernel, dtype=jnp.float32)
    assert wide.dtype == jnp.float32
    assert (wide == 600).all()
