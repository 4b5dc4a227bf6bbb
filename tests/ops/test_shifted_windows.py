"""Shifted windows: tables against timm's, an example of the mask, drop path."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credit_jax.ops import unpatch
from credit_jax.ops.drop_path import drop_path
from credit_jax.ops.position_bias import pairs_of_offsets
from credit_jax.ops.shifted_windows import beyond_edge, scaled_offsets


@pytest.fixture(scope="module")
def timm() -> Any:
    from credit_torch_bridge.compare.credit_import import import_torchvision

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
