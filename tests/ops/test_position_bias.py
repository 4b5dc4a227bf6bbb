"""The lookup of CREDIT's dynamic position bias against CREDIT's own module."""

import numpy as np
import pytest

from credit_jax.ops.position_bias import bias_index, bias_positions
from tests.support.credit_modules import credit_attribute


@pytest.mark.parametrize("window", [1, 2, 3, 4, 7])
def test_lookup_is_that_of_credit(credit, window):
    attention_class = credit_attribute("models.wxformer.crossformer", "Attention")
    attention = attention_class(16, "short", window, dim_head=8)
    expected = attention.rel_pos_indices.numpy()
    assert np.array_equal(bias_index(window), expected)


def test_positions_are_the_offsets_row_by_row():
    expected = [(i, j) for i in (-2, -1, 0, 1, 2) for j in (-2, -1, 0, 1, 2)]
    assert bias_positions(2).tolist() == [list(pair) for pair in expected]


def test_index_stays_within_the_table():
    for window in range(1, 12):
        index = bias_index(window)
        assert index.shape == (window**2, window**2)
        assert 0 <= index.min() <= index.max() < len(bias_positions(window))
