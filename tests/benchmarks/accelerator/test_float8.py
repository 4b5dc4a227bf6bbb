"""Float8 products counted in traces and in compiled programs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from benchmarks.accelerator.float8 import float8_of, float8_problems, traced_products
from benchmarks.accelerator.program import parse
from credit_jax.ops.float8 import float8_dense

PROGRAM = """HloModule step, is_scheduled=true

%gemm (a: f8e4m3fn[8,16], b: f8e4m3fn[16,32]) -> f32[8,32] {
  %a = f8e4m3fn[8,16]{1,0} parameter(0)
  %b = f8e4m3fn[16,32]{1,0} parameter(1)
  ROOT %dot.1 = f32[8,32]{1,0} dot(%a, %b), lhs_contracting_dims={1}
}

ENTRY %main (p0: f32[8,16], p1: f8e4m3fn[16,32]) -> f32[8,32] {
  %p0 = f32[8,16]{1,0} parameter(0)
  %p1 = f8e4m3fn[16,32]{1,0} parameter(1)
  %convert.1 = f8e4m3fn[8,16]{1,0} convert(%p0)
  ROOT %fusion.1 = f32[8,32]{1,0} fusion(%convert.1, %p1), kind=kCustom, calls=%gemm
}
"""


def test_products_of_a_program() -> None:
    found = float8_of(parse(PROGRAM))
    assert found == {"products": 1, "mixed": 0, "widened": 0}
    account = {"float8": 16, "float8_traced": 1, "float8_products": found}
    assert float8_problems(account) == []
    assert float8_problems({}) == []


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("%a = f8e4m3fn", "%a = bf16", {"products": 0, "mixed": 1, "widened": 0}),
        (
            "f8e4m3fn[8,16]{1,0} convert(%p0)",
            "f32[16,32]{1,0} convert(%p1)",
            {"products": 1, "mixed": 0, "widened": 1},
        ),
    ],
)
def test_what_is_not_meant(old: str, new: str, found: dict[str, int]) -> None:
    assert float8_of(parse(PROGRAM.replace(old, new))) == found
    account = {"float8": 16, "float8_traced": 1, "float8_products": found}
    assert any("float8" in line for line in float8_problems(account))


def test_products_of_a_trace() -> None:
    """Float8 in the forward pass and the gradient of x, not in that of the weights."""

    def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return float8_dense(x, kernel).sum()

    x, kernel = jnp.ones((8, 16)), jnp.ones((16, 32))
    program = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(x, kernel)
    assert traced_products(program) == 2

    def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
        return float8_dense(carry, kernel[:, :16]), None

    looped = jax.make_jaxpr(lambda x: jax.lax.scan(body, x, length=3))(x)
    assert traced_products(looped) == 1, "one within a loop counts once"
