"""Other models on every mesh against one device; see `test_meshes.py`."""

from __future__ import annotations

import jax
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

# Models beside wxformer and crossformer, uneven rows: 45, 32 on 3, 7. What is compared
# on dp 2 x tp 2 x domain 2 in float64, below, is not compared there in float32, too.
OTHERS = [
    ("camulator earth", "dp2_tp2_domain2"),
    ("camulator two frames", "domain3"),
    ("camulator earth", "domain8"),
    ("downscaling mirror", "domain3"),
    ("downscaling mirror", "domain8"),
    ("nextgen levels", "domain3"),
    ("nextgen odd", "domain8"),
    ("ensemble correlated", "dp2_tp2_domain2"),
    ("ensemble frozen", "domain3"),
    ("ensemble frozen", "domain8"),
    ("diffusion v", "domain3"),
    ("unet-diffusion padded", "domain3"),
    ("unet-diffusion padded", "domain8"),
    ("unet-diffusion own levels", "domain8"),
    ("debugger", "domain3"),
    ("debugger", "domain8"),
]
QUICK = [
    ("ensemble frozen", "domain3"),
    ("debugger", "domain3"),
    ("debugger", "domain8"),
]


@pytest.mark.parametrize(("name", "mesh"), mark_slow(OTHERS, but=QUICK))
def test_other_models_equal_one_device(name: str, mesh: str) -> None:
    """FSDP where there is dp, and blocks recomputed in the backward pass."""
    actual = run(name, MESHES[mesh], "float32", remat="full")
    expected = one_device(name, "float32")
    compare(actual, expected, (FORWARD, GRADIENT), f"{name} on {mesh}")


# The wiring of each model, every array of the gradient.
@pytest.mark.parametrize(
    "name",
    mark_slow(
        [
            "camulator two frames",
            "downscaling mirror",
            "nextgen levels",
            "unet-diffusion padded",
            "debugger",
        ],
        but=["nextgen levels", "debugger"],
    ),
)
def test_other_models_equal_one_device_in_float64(name: str) -> None:
    with jax.enable_x64(True):
        actual = run(name, (2, 2, 2), "float64", remat="full")
        expected = one_device(name, "float64")
    compare(actual, expected, (FLOAT64, FLOAT64), "float64")
    assert_trees_close(actual[2], expected[2], FLOAT64, "float64: each gradient")


@pytest.mark.parametrize(
    "mesh", mark_slow(["domain3", "domain8", "dp2_tp2_domain2"], but=["domain3"])
)
def test_unet_equals_one_device(mesh: str) -> None:
    """In float64: where rounding flips the sign of a unit its gradient jumps.

    45, 23, 12 and 6 rows; statistics of batch norms over the whole batch.
    """
    with jax.enable_x64(True):
        actual = run("unet odd", MESHES[mesh], "float64", remat="full")
        expected = one_device("unet odd", "float64")
    compare(actual, expected, (FLOAT64, FLOAT64), f"unet on {mesh}")
    assert_trees_close(actual[2], expected[2], FLOAT64, f"unet on {mesh}: gradients")
