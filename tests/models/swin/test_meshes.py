"""The Swin family on every mesh against one device, as `test_meshes.py` above."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests.models.mesh_parity import (
    FLOAT64,
    FORWARD,
    GRADIENT,
    MESHES,
    compare,
    one_device,
    run,
)
from tests.support import assert_trees_close, mark_slow


@pytest.mark.parametrize(
    ("name", "mesh"),
    mark_slow(
        [
            ("shifted", "dp2_tp2_domain2"),
            ("shifted", "domain8"),
            ("shifted", "domain3"),
            ("dropout", "domain3"),
            ("one row of windows", "domain3"),
        ],
        but=[("shifted", "domain8")],
    ),
)
@pytest.mark.filterwarnings("ignore:.*does not see")
def test_fuxi_equals_one_device(name: str, mesh: str) -> None:
    """Three rows of windows: on eight shards most have none."""
    name = f"fuxi {name}"
    actual = run(name, MESHES[mesh], "float32")
    expected = one_device(name, "float32")
    compare(actual, expected, (FORWARD, GRADIENT), f"{name} on {mesh}")


@pytest.mark.slow
def test_fuxi_equals_one_device_in_float64() -> None:
    """Every array of the gradient, on 2 x 2 x 2; that of qkv is zero."""
    with jax.enable_x64(True):
        actual = run("fuxi shifted", (2, 2, 2), "float64")
        expected = one_device("fuxi shifted", "float64")
    compare(actual, expected, (FLOAT64, FLOAT64), "float64")
    assert_trees_close(actual[2], expected[2], FLOAT64, "float64: each gradient")
    assert not np.any(actual[2]["u_transformer/blocks/attention/qkv/kernel"])


@pytest.mark.parametrize(
    ("name", "mesh"),
    mark_slow(
        [
            ("oblong", "dp2_tp2_domain2"),
            ("oblong", "domain8"),
            ("padded", "domain3"),
            ("stages", "domain3"),
            ("one row of windows", "domain2"),
        ],
        but=[("oblong", "dp2_tp2_domain2")],
    ),
)
def test_swin_equals_one_device(name: str, mesh: str) -> None:
    name = f"swin {name}"
    actual = run(name, MESHES[mesh], "float32")
    expected = one_device(name, "float32")
    compare(actual, expected, (FORWARD, GRADIENT), f"{name} on {mesh}")


@pytest.mark.slow
def test_swin_equals_one_device_in_float64() -> None:
    """Every array of the gradient, on 2 x 2 x 2, with dropout of the position bias."""
    with jax.enable_x64(True):
        actual = run("swin one row of windows", (2, 2, 2), "float64")
        expected = one_device("swin one row of windows", "float64")
    compare(actual, expected, (FLOAT64, FLOAT64), "float64")
    assert_trees_close(actual[2], expected[2], FLOAT64, "float64: each gradient")
