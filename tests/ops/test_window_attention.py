"""Products within windows against torch's einsum."""

import jax.numpy as jnp
import pytest

from credit_jax.ops import attend, attention_logits
from tests.ops.window_attention_cases import CASES, of_torch, pairs_of_case
from tests.support import assert_close
from tests.support.gradients import assert_same, jax_values


@pytest.mark.parametrize("case", CASES)
def test_products_and_their_gradients_are_torchs(case):
    functions = attention_logits, attend
    for ours, (equation, factors) in zip(functions, pairs_of_case(case), strict=True):
        found = jax_values(ours, *factors)
        assert_same(found, of_torch(equation, factors), f"{case}, {equation}")


def test_sums_may_be_wider_than_the_factors():
    x = jnp.ones((2, 4, 600), jnp.bfloat16)
    assert attention_logits(x, x).dtype == jnp.bfloat16
    wide = attention_logits(x, x, dtype=jnp.float32)
    assert wide.dtype == jnp.float32
    assert_close(wide, jnp.full((2, 4, 4), 600.0), 0, "sums of ones")
