"""The Swin family on meshes against one device."""

from __future__ import annotations

import numpy as np
import pytest

from tests.models.mesh_parity import (
    assert_equals_one_device,
    assert_equals_one_device_in_float64,
)
from tests.models.swin.cases import FUXI_CASES, SWIN_CASES, SWIN_PADDED

SWIN_BLOCKS = {**SWIN_CASES, "padded": SWIN_PADDED}


@pytest.mark.slow(but=["shifted-dp2_tp2_domain2"])
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("shifted", "dp2_tp2_domain2"),
        ("shifted", "domain8"),
        ("shifted", "domain3"),
        ("dropout", "domain3"),
        ("one row of windows", "domain3"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*does not see")
def test_fuxi_equals_one_device(name: str, mesh: str) -> None:
    """With three rows of windows, most of eight shards have none."""
    assert_equals_one_device(FUXI_CASES[name], mesh, f"fuxi {name}")


@pytest.mark.slow
def test_fuxi_equals_one_device_in_float64() -> None:
    """Every array of the gradient on 2 x 2 x 2; that of qkv is zero."""
    actual = assert_equals_one_device_in_float64(FUXI_CASES["shifted"], "fuxi shifted")
    assert not np.any(actual[2]["u_transformer/blocks/attention/qkv/kernel"])


@pytest.mark.slow(but=["oblong-dp2_tp2_domain2"])
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("oblong", "dp2_tp2_domain2"),
        ("oblong", "domain8"),
        ("padded", "domain3"),
        ("stages", "domain3"),
        ("one row of windows", "domain2"),
    ],
)
def test_swin_equals_one_device(name: str, mesh: str) -> None:
    assert_equals_one_device(SWIN_BLOCKS[name], mesh, f"swin {name}")


@pytest.mark.slow
def test_swin_equals_one_device_in_float64() -> None:
    """Every array of the gradient on 2 x 2 x 2, with dropout of the position bias."""
    assert_equals_one_device_in_float64(SWIN_CASES["one row of windows"], "swin")
