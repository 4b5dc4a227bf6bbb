"""Products within windows on CPU against einsum, for few tokens and for many."""

import jax
import jax.numpy as jnp
import pytest

from credit_jax import ops
from credit_jax.kernels.cpu.window_attention import attend, attention_logits
from tests.ops.window_attention_cases import CASES, of_torch, pairs_of_case
from tests.support import assert_close
from tests.support.gradients import assert_same, jax_values

FUNCTIONS = {attention_logits: ops.attention_logits, attend: ops.attend}


@pytest.mark.parametrize("case", CASES)
def test_products_and_their_gradients_are_torchs_and_the_plain_ones(case):
    pairs = zip(FUNCTIONS.items(), pairs_of_case(case), strict=True)
    for (ours, plain), (equation, factors) in pairs:
        found = jax_values(ours, *factors)
        assert_same(found, of_torch(equation, factors), f"{case}, {equation}, torch")
        assert_same(found, jax_values(plain, *factors), f"{case}, {equation}, plain")


def _products(ours, tokens, dtype=jnp.float32):
    """Counts the dot products in the program of both gradients, for many windows."""
    x = jnp.zeros((8, 3, tokens, 16), dtype)
    pairs = ours in (attention_logits, ops.attention_logits)
    first = x if pairs else jnp.zeros((8, 3, tokens, tokens), dtype)
    both = jax.value_and_grad(lambda a, b: jnp.sum(ours(a, b) ** 2), (0, 1))
    return str(jax.make_jaxpr(both)(first, x)).count("dot_general")


@pytest.mark.parametrize("ours", FUNCTIONS)
def test_sums_over_few_tokens_are_unrolled(ours):
    assert _products(ours, 17) == 3
    assert _products(ours, 16) == 1
    assert _products(ours, 16, jnp.bfloat16) == 3, "half precisions add wider"
    assert _products(FUNCTIONS[ours], 16) == 3


def test_sums_may_be_wider_than_the_factors():
    x = jnp.ones((2, 4, 600), jnp.bfloat16)
    assert attention_logits(x, x).dtype == jnp.bfloat16
    wide = attention_logits(x, x, dtype=jnp.float32)
    assert wide.dtype == jnp.float32
    assert_close(wide, jnp.full((2, 4, 4), 600.0), 0, "sums of ones")
