"""The lookup of CREDIT's dynamic position bias against CREDIT's own module."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.ops.position_bias import (
    bias_positions,
    credit_table,
    pairs_of_offsets,
)
from tests.support.credit_modules import credit_attribute


@pytest.mark.parametrize("window", [1, 2, 3, 4, 7])
def test_lookup_is_that_of_credit(credit, window):
    attention_class = credit_attribute("models.wxformer.crossformer", "Attention")
    attention = attention_class(16, "short", window, dim_head=8)
    expected = attention.rel_pos_indices.numpy()
    entries = credit_table(jnp.arange(float(len(bias_positions(window)))), window)
    assert np.array_equal(pairs_of_offsets(entries, (window, window)), expected)


def test_positions_are_the_offsets_row_by_row():
    expected = [(i, j) for i in (-2, -1, 0, 1, 2) for j in (-2, -1, 0, 1, 2)]
    assert bias_positions(2).tolist() == [list(pair) for pair in expected]


@pytest.mark.slow(but=["(1, 4)"])
@pytest.mark.parametrize("window", [(1, 1), (1, 4), (3, 2), (4, 4)], ids=str)
def test_gradient_is_the_sum_over_all_pairs_of_an_offset(window):
    rows, columns = window
    shape = ((2 * rows - 1) * (2 * columns - 1), 3)
    draw = np.random.default_rng(0).standard_normal
    table = draw(shape, np.float32)
    pairs, gradient = jax.vjp(lambda t: pairs_of_offsets(t, window), table)
    cotangent = draw(pairs.shape, np.float32)
    expected = np.zeros(shape)
    tokens = list(np.ndindex(window))
    for i, a in enumerate(tokens):
        for j, b in enumerate(tokens):
            row, column = a[0] - b[0] + rows - 1, a[1] - b[1] + columns - 1
            entry = row * (2 * columns - 1) + column
            assert np.array_equal(pairs[i, j], table[entry])
            expected[entry] += cotangent[i, j]
    np.testing.assert_allclose(gradient(cotangent)[0], expected, rtol=1e-5, atol=1e-6)


def test_gradient_has_no_scatter():
    """It adds in the order in which a GPU comes to the entries: in another each run."""
    table = jnp.zeros(25)
    program = jax.make_jaxpr(jax.grad(lambda t: pairs_of_offsets(t, (3, 3)).sum()))
    assert "scatter" not in str(program(table))
