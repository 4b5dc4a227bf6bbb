"""WXFormer and CrossFormer on every mesh against one device.

They run the plain definitions, as accelerators do, and on the mesh of all axes also the
implementations for CPU. Loops with collectives are unrolled in these tests, because XLA
on CPU does not order collectives in loops (`parallel.compiler`).
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

from credit_jax.parallel.params.precision import Float8
from tests.models.crossformer import cases
from tests.models.crossformer.cases import CASES, CROSSFORMER_CASES
from tests.models.mesh_parity import (
    FLOAT64,
    FORWARD,
    GRADIENT,
    MESHES,
    assert_equals_one_device,
    assert_equals_one_device_in_float64,
    compare,
    one_device,
    run,
)
from tests.support import assert_close, assert_trees_close

# One sample per device of "dp8".
BATCH = 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "implementation"),
    [
        *((mesh, "xla") for mesh in MESHES),
        ("dp2_tp2_domain2", "cpu"),
    ],
)
def test_equals_one_device(mesh: str, implementation: str) -> None:
    """45 rows, uneven on every domain degree above one."""
    block = CASES["uneven"]
    actual = run(block, MESHES[mesh], "float32", implementation, batch=BATCH)
    expected = one_device(block, "float32", BATCH)
    compare(actual, expected, (FORWARD, GRADIENT), f"{mesh}, {implementation}")


@pytest.mark.parametrize("mesh", ["dp2_tp2_domain2", "domain4"])
def test_equals_one_device_in_float64(mesh: str) -> None:
    """Every array of the gradient in float64; 30 rows are uneven on 4 shards."""
    block = CASES["earth"]
    assert_equals_one_device_in_float64(block, "earth", degrees=MESHES[mesh])


# Numbers of shards that do not divide 8, 4 or 2 bands of windows, and some that do.
STRIPS = {
    "domain2": (1, 1, 2),
    "domain4": (1, 1, 4),
    "domain5": (1, 1, 5),
    "domain8": (1, 1, 8),
    "tp2_domain3": (1, 2, 3),
    "dp2_tp2_domain2": (2, 2, 2),
}


@pytest.mark.slow
@pytest.mark.parametrize("mesh", list(STRIPS))
def test_strips_are_exact_in_float64(mesh: str) -> None:
    """Every array of the gradient, with windows in strips and recomputed blocks."""
    degrees = STRIPS[mesh]
    assert_equals_one_device_in_float64(cases.STRIPS, "strips", "full", degrees)


@pytest.mark.slow
def test_float8_rounds_alike_on_every_mesh() -> None:
    """Scales are powers of two from maxima, so that all meshes round equally."""
    block, float8 = CASES["earth"], Float8(min_channels=16)
    with jax.enable_x64(True):
        actual = run(block, (2, 2, 2), "float64", float8=float8)
        expected = run(block, (1, 1, 1), "float64", float8=float8)
        wide = one_device(block, "float64")
    compare(actual, expected, (FLOAT64, FLOAT64), "float8")
    assert_trees_close(actual[2], expected[2], FLOAT64, "float8: each gradient")
    error = assert_close(actual[0], wide[0], 0.1, "float8 against float64")
    assert error > 1e-4, "nothing was rounded"


@pytest.mark.slow
def test_frames_without_spectral_norm_on_domain_3() -> None:
    """Mirror padding, two frames, interpolation from half the grid; 88 rows on 3."""
    assert_equals_one_device(CASES["frames"], "domain3", "frames")


# Features that only this model has: transposed convolutions and reflected poles, 45
# rows; interpolation and gates of channels and points.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("mirror", "dp2_tp2_domain2"),
        ("mirror", "domain3"),
        ("interpolating", "domain3"),
        ("odd", "domain8"),
    ],
)
def test_crossformer_equals_one_device(name: str, mesh: str) -> None:
    assert_equals_one_device(CROSSFORMER_CASES[name], mesh, name)


@pytest.mark.slow
def test_crossformer_equals_one_device_in_float64() -> None:
    """Every array of the gradient, batch norms over the whole batch, on 2 x 2 x 2."""
    block = CROSSFORMER_CASES["coordinates"]
    assert_equals_one_device_in_float64(block, "coordinates")


@pytest.mark.slow
def test_bfloat16_stays_near_float32() -> None:
    """bfloat16 compute with float32 parameters, statistics and sums."""
    wide = one_device(CASES["plain"], "float32")
    narrow = run(CASES["plain"], (1, 1, 2), "bfloat16")
    assert narrow[2]["head/out/kernel"].dtype == np.float32
    assert_close(narrow[1], wide[1], 2e-2, "bfloat16 loss against float32")
    assert_close(narrow[0], wide[0], 5e-2, "bfloat16 prediction against float32")
