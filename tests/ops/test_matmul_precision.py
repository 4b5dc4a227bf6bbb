from functools import partial

import jax
import jax.numpy as jnp
import pytest

from benchmarks.compiled_step import equations
from credit_jax.ops.matmul_precision import custom_vjp


@partial(custom_vjp, nondiff_argnums=(2,))
def product(x, kernel, factor):
    """Returns `factor * x @ kernel`."""
    return factor * (x @ kernel)


def _forward(x, kernel, factor):
    return product(x, kernel, factor), (x, kernel)


def _backward(factor, saved, cotangent):
    x, kernel = saved
    return factor * (cotangent @ kernel.T), factor * (x.T @ cotangent)


product.defvjp(_forward, _backward)


def precisions(function, *args):
    jaxpr = jax.make_jaxpr(function)(*args)
    products = [e for e in equations(jaxpr.jaxpr) if e.primitive.name == "dot_general"]
    return [e.params["precision"] for e in products]


@pytest.mark.parametrize("jit", [jax.jit, lambda f: f])
@pytest.mark.parametrize("name", ["highest", "high", None])
def test_the_gradient_has_the_precision_of_the_call(jit, name):
    x, kernel = jnp.ones((2, 3)), jnp.ones((3, 4))

    @jit
    def forward(x, kernel):
        with jax.default_matmul_precision(name):
            return product(x, kernel, 2.0).sum()

    level = name and (jax.lax.Precision(getattr(jax.lax.Precision, name.upper())),) * 2
    assert precisions(jax.value_and_grad(forward, (0, 1)), x, kernel) == [level] * 3
    plain = jax.grad(lambda x, kernel: 2.0 * (x @ kernel).sum(), (0, 1))
    for ours, theirs in zip(
        jax.grad(forward, (0, 1))(x, kernel), plain(x, kernel), strict=True
    ):
        assert (ours == theirs).all()
