"""Models on every mesh against one device: prediction, loss and every gradient.

On the plain definitions, which is what accelerators run; and the mesh of all axes on
the implementations of CPU. Loops that hold collectives are unrolled on every mesh here:
XLA on CPU does not order them (`parallel.compiler`).
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

from credit_jax.parallel.params.precision import Float8
from tests.models.mesh_parity import (
    FLOAT64,
    FORWARD,
    GRADIENT,
    MESHES,
    compare,
    one_device,
    run,
)
from tests.support import assert_close, assert_trees_close, mark_slow


@pytest.mark.parametrize(
    ("mesh", "implementation"),
    mark_slow(
        [
            *((mesh, "xla") for mesh in MESHES),
            ("dp2_tp2_domain2", "cpu"),
        ],
        but=[("domain3", "xla"), ("dp2_tp2_domain2", "xla")],
    ),
)
def test_equals_one_device(mesh: str, implementation: str) -> None:
    """45 rows: uneven on every domain degree above one."""
    actual = run("uneven", MESHES[mesh], "float32", implementation)
    expected = one_device("uneven", "float32")
    compare(actual, expected, (FORWARD, GRADIENT), f"{mesh}, {implementation}")


def test_equals_one_device_in_float64() -> None:
    """What is exact stays exact: every array of the gradient, 30 rows on 2 x 2 x 2."""
    with jax.enable_x64(True):
        actual = run("earth", (2, 2, 2), "float64")
        expected = one_device("earth", "float64")
    assert actual[0].dtype == np.float64, f"the forward ran in {actual[0].dtype}"
    compare(actual, expected, (FLOAT64, FLOAT64), "float64")
    assert_trees_close(actual[2], expected[2], FLOAT64, "float64: each gradient")


# Shards that divide neither 8, 4 nor 2 bands of windows, and some that do.
STRIPS = {
    "domain2": (1, 1, 2),
    "domain4": (1, 1, 4),
    "domain5": (1, 1, 5),
    "domain8": (1, 1, 8),
    "tp2_domain3": (1, 2, 3),
    "dp2_tp2_domain2": (2, 2, 2),
}


@pytest.mark.parametrize("mesh", mark_slow(list(STRIPS), but=[]))
def test_strips_are_exact_in_float64(mesh: str) -> None:
    """Windows shared out as strips, blocks recomputed: every array of the gradient."""
    with jax.enable_x64(True):
        actual = run("strips", STRIPS[mesh], "float64", remat="full")
        expected = one_device("strips", "float64")
    compare(actual, expected, (FLOAT64, FLOAT64), f"strips on {mesh}")
    assert_trees_close(actual[2], expected[2], FLOAT64, "strips: each gradient")


@pytest.mark.slow
def test_float8_rounds_alike_on_every_mesh() -> None:
    """Scales are powers of two of maxima, so that meshes round to the same values."""
    with jax.enable_x64(True):
        actual = run("earth", (2, 2, 2), "float64", float8=Float8(min_channels=16))
        expected = run("earth", (1, 1, 1), "float64", float8=Float8(min_channels=16))
        wide = one_device("earth", "float64")
    compare(actual, expected, (FLOAT64, FLOAT64), "float8")
    assert_trees_close(actual[2], expected[2], FLOAT64, "float8: each gradient")
    error = assert_close(actual[0], wide[0], 0.1, "float8 against float64")
    assert error > 1e-4, "nothing was rounded"


def test_frames_without_spectral_norm_on_domain_3() -> None:
    """Mirror padding, two frames, interpolation from half the grid; 88 rows on 3."""
    actual = run("frames", (1, 1, 3), "float32")
    expected = one_device("frames", "float32")
    compare(actual, expected, (FORWARD, GRADIENT), "frames on domain 3")


# What each model has and the others have not: transposed convolutions and reflected
# poles, 45 rows; interpolation and gates of channels and points.
@pytest.mark.parametrize(
    ("name", "mesh"),
    mark_slow(
        [
            ("mirror", "dp2_tp2_domain2"),
            ("mirror", "domain3"),
            ("interpolating", "domain3"),
            ("odd", "domain8"),
        ],
        but=[("mirror", "dp2_tp2_domain2"), ("odd", "domain8")],
    ),
)
def test_crossformer_equals_one_device(name: str, mesh: str) -> None:
    name = f"crossformer {name}"
    actual = run(name, MESHES[mesh], "float32")
    expected = one_device(name, "float32")
    compare(actual, expected, (FORWARD, GRADIENT), f"{name} on {mesh}")


def test_crossformer_equals_one_device_in_float64() -> None:
    """Every array of the gradient, batch norms over the whole batch, on 2 x 2 x 2."""
    name = "crossformer coordinates"
    with jax.enable_x64(True):
        actual = run(name, (2, 2, 2), "float64")
        expected = one_device(name, "float64")
    compare(actual, expected, (FLOAT64, FLOAT64), "float64")
    assert_trees_close(actual[2], expected[2], FLOAT64, "float64: each gradient")


@pytest.mark.slow
def test_bfloat16_stays_near_float32() -> None:
    """bf16 compute with float32 parameters, statistics and sums."""
    wide = one_device("plain", "float32")
    narrow = run("plain", (1, 1, 2), "bfloat16")
    assert narrow[2]["head/out/kernel"].dtype == np.float32
    assert_close(narrow[1], wide[1], 2e-2, "bfloat16 loss against float32")
    assert_close(narrow[0], wide[0], 5e-2, "bfloat16 prediction against float32")
