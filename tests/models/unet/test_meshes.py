"""The U-Nets on meshes against one device."""

from __future__ import annotations

import pytest

from tests.models.mesh_parity import (
    MESHES,
    assert_equals_one_device,
    assert_equals_one_device_in_float64,
)
from tests.models.unet.cases import CASES, DIFFUSION_CASES


@pytest.mark.slow(but=["dp2_tp2_domain2"])
@pytest.mark.parametrize(
    "mesh",
    ["domain3", "domain8", "dp2_tp2_domain2"],
)
def test_unet_equals_one_device(mesh: str) -> None:
    """In float64, because a unit's gradient jumps where rounding flips its sign.

    45, 23, 12 and 6 rows; statistics of batch norms over the whole batch.
    """
    assert_equals_one_device_in_float64(CASES["odd"], "unet", "full", MESHES[mesh])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mesh"),
    [("padded", "domain3"), ("padded", "domain8"), ("own levels", "domain8")],
)
def test_unet_diffusion_equals_one_device(name: str, mesh: str) -> None:
    """With blocks recomputed in the backward pass."""
    assert_equals_one_device(DIFFUSION_CASES[name], mesh, name, remat="full")


@pytest.mark.slow
def test_unet_diffusion_equals_one_device_in_float64() -> None:
    assert_equals_one_device_in_float64(DIFFUSION_CASES["padded"], "padded", "full")
