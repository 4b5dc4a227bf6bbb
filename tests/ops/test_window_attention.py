"""Attention within windows, and drop path: torch, timm, CREDIT on the same arrays."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.ops import unpatch
from credit_jax.ops.random import drop_path
from credit_jax.ops.window_attention import (
    beyond_edge,
    pairs_of_offsets,
    scaled_offsets,
)
from tests.support.credit_modules import credit_attribute


@pytest.fixture(scope="module")
def timm() -> Any:
    from credit_torch_bridge.compare.jax_side import import_torchvision

    import_torchvision()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("timm.models.swin_transformer_v2")


@pytest.mark.reference
@pytest.mark.parametrize("window", [(2, 2), (3, 3), (4, 4), (7, 7), (8, 16), (9, 24)])
def test_the_tables_are_timms(timm: Any, window: tuple[int, int]) -> None:
    theirs = timm.WindowAttention(4, window, 2)
    table = theirs.relative_coords_table.numpy().reshape(-1, 2)
    ours = scaled_offsets(window)
    assert ours.dtype == table.dtype
    assert np.array_equal(ours, table), "bitwise, for what float64 must agree with"
    entries = np.arange(float(len(scaled_offsets(window))))
    index = pairs_of_offsets(jnp.asarray(entries), window)
    assert np.array_equal(index, theirs.relative_position_index.numpy())


@pytest.mark.reference
@pytest.mark.parametrize("sizes", [(9, 12), (3, 9), (6, 3)])
def test_the_mask_is_timms(timm: Any, sizes: tuple[int, int]) -> None:
    block = timm.SwinTransformerV2Block(4, sizes, 2, window_size=3, shift_size=1)
    rows, columns = beyond_edge((3, 3), block.shift_size)
    expected = np.asarray(block.attn_mask)
    by_window = expected.reshape(sizes[0] // 3, sizes[1] // 3, 9, 9)
    assert np.array_equal(by_window[-1, -1] < 0, rows | columns)
    if sizes[0] > 3:
        assert np.array_equal(by_window[0, -1] < 0, columns)
    if sizes[1] > 3:
        assert np.array_equal(by_window[-1, 0] < 0, rows)


def test_unpatch_takes_values_of_a_point_together() -> None:
    x = jnp.arange(2 * 2 * 12.0).reshape(1, 2, 2, 12)
    y = np.asarray(unpatch(x, (2, 3)))
    assert y.shape == (1, 4, 6, 2)
    assert list(y[0, 0, 0]) == [0, 1]
    assert list(y[0, 1, 2]) == [10, 11], "row 1, column 2 of the first patch"
    assert list(y[0, 0, 3]) == [12, 13], "the next patch"


def test_drop_path_drops_whole_samples() -> None:
    samples = jnp.arange(4000)
    x = jnp.ones((4000, 3))
    y = np.asarray(drop_path(x, jax.random.key(0), samples, 0.2))
    assert set(np.unique(y)) == {0.0, np.float32(1 / 0.8)}
    assert (y == y[:, :1]).all()
    assert abs((y[:, 0] == 0).mean() - 0.2) < 0.03
    half = drop_path(x[:2], jax.random.key(0), samples[1000:1002], 0.2)
    assert np.array_equal(half, y[1000:1002]), "by number of the sample"
    other = drop_path(x, jax.random.key(0), samples, 0.2, branch=1)
    assert 0.2 < (np.asarray(other) != y).mean() < 0.7
    traced = jax.jit(drop_path)(x, jax.random.key(0), samples, jnp.float32(0.2))
    assert np.array_equal(traced, y)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 7])
def test_lookup_is_that_of_credit(credit, window):
    attention_class = credit_attribute("models.wxformer.crossformer", "Attention")
    attention = attention_class(16, "short", window, dim_head=8)
    expected = attention.rel_pos_indices.numpy()
    entries = jnp.arange(float((2 * window - 1) ** 2))
    assert np.array_equal(pairs_of_offsets(entries, (window, window)), expected)


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
