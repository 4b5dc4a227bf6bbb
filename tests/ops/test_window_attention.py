"""Products within windows: those of einsum, for few tokens and for many."""

import jax
import jax.numpy as jnp
import pytest

from credit_jax.ops.backend import written_for
from credit_jax.ops.window_attention import attend, attention_logits
from tests.support import assert_close
from tests.support.gradients import assert_same, draw, jax_values, torch_values

torch = pytest.importorskip("torch")

PAIRS, SUMS = "...id,...jd->...ij", "...ij,...jd->...id"
# name: windows and heads, tokens i, tokens j, channels
CASES = {
    "a token": ((2, 3), 1, 1, 5),
    "2 x 2": ((2, 5, 3), 4, 4, 16),
    "4 x 4": ((3, 2), 16, 16, 8),
    "5 x 5": ((3, 2), 25, 25, 8),
    "fewer by more": ((3,), 4, 17, 6),
    "more by fewer": ((3,), 17, 4, 6),
}


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("case", CASES)
def test_products_and_their_gradients_are_torchs(case, backend):
    batch, i, j, channels = CASES[case]
    tokens = draw((*batch, j, channels))
    for ours, equation, first in (
        (attention_logits, PAIRS, draw((*batch, i, channels))),
        (attend, SUMS, draw((*batch, i, j))),
    ):
        expected = torch_values(
            lambda a, b, equation=equation: torch.einsum(equation, a, b), first, tokens
        )
        with written_for(backend):
            found = jax_values(ours, first, tokens)
        assert_same(found, expected, f"{case}, {equation}")


def _products(ours, tokens, dtype=jnp.float32):
    """Dot products in the program of a gradient by both, with many windows."""
    x = jnp.zeros((8, 3, tokens, 16), dtype)
    first = x if ours is attention_logits else jnp.zeros((8, 3, tokens, tokens), dtype)
    both = jax.value_and_grad(lambda a, b: jnp.sum(ours(a, b) ** 2), (0, 1))
    return str(jax.make_jaxpr(both)(first, x)).count("dot_general")


@pytest.mark.parametrize("ours", [attention_logits, attend])
def test_sums_over_few_tokens_are_written_out_on_cpu_alone(ours):
    assert _products(ours, 17) == 3
    assert _products(ours, 16) == 1
    assert _products(ours, 16, jnp.bfloat16) == 3, "half precisions add wider"
    with written_for("gpu"):
        assert _products(ours, 16) == 3


def test_sums_may_be_wider_than_the_factors():
    x = jnp.ones((2, 4, 600), jnp.bfloat16)
    assert attention_logits(x, x).dtype == jnp.bfloat16
    wide = attention_logits(x, x, dtype=jnp.float32)
    assert wide.dtype == jnp.float32
    assert_close(wide, jnp.full((2, 4, 4), 600.0), 0, "sums of ones")
