"""Interpolation weights against torch.nn.functional.interpolate."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from credit_jax.ops import area_taps, linear_taps, nearest_taps
from tests.support import assert_close
from tests.support.gradients import assert_same, draw, jax_values, torch_values

SIZES = [(5, 5), (4, 9), (9, 4), (181, 45), (45, 181), (180, 181), (721, 240)]
SIZES += [(192, 181), (1, 3), (3, 1), (2, 640)]


def interpolate(taps, x):
    weight = jnp.asarray(taps.weight, x.dtype)[:, None]
    return x[taps.low] * (1 - weight) + x[taps.high] * weight


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("size", "out"), SIZES)
def test_linear_is_that_of_torch(size, out, align_corners):
    taps = linear_taps(size, out, align_corners=align_corners, dtype=np.float32)

    def torch_linear(x):
        return torch.nn.functional.interpolate(
            x.T[None], size=out, mode="linear", align_corners=align_corners
        )[0].T

    x = draw((size, 3))
    actual = jax_values(lambda x: interpolate(taps, x), x)
    assert_same(actual, torch_values(torch_linear, x), f"{size} to {out}")


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("size", "out"), SIZES)
def test_linear_in_float64(size, out, align_corners):
    x = draw((size, 3), dtype=np.float64)
    taps = linear_taps(size, out, align_corners=align_corners)
    actual = x[taps.low] * (1 - taps.weight[:, None])
    actual = actual + x[taps.high] * taps.weight[:, None]
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(x.T[None].copy()),
        size=out,
        mode="linear",
        align_corners=align_corners,
    )[0].T.numpy()
    assert_close(actual, expected, 1e-14, f"{size} to {out}")


@pytest.mark.parametrize(("size", "out"), [*SIZES, (640, 721), (721, 361), (7, 700)])
def test_nearest_is_that_of_torch(size, out):
    rows = torch.arange(size, dtype=torch.float32)[None, None]
    expected = torch.nn.functional.interpolate(rows, size=out, mode="nearest")
    actual = nearest_taps(size, out)
    assert actual.tolist() == expected[0, 0].int().tolist(), f"{size} to {out}"


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_is_that_of_torch_for_every_size(mode):
    """Of two-dimensional data; for others torch rounds nearest-exact differently."""
    wrong = []
    for size in range(1, 80):
        rows = torch.arange(size, dtype=torch.float32)[None, None, None]
        for out in range(1, 80):
            expected = torch.nn.functional.interpolate(rows, size=(1, out), mode=mode)
            actual = nearest_taps(size, out, half_pixel=mode == "nearest-exact")
            if actual.tolist() != expected[0, 0, 0].int().tolist():
                wrong.append((size, out))
    assert not wrong, f"{len(wrong)} pairs of sizes differ, first {wrong[:5]}"


@pytest.mark.slow
def test_area_is_that_of_torch_for_every_larger_size():
    for size in range(1, 40):
        x = draw((size, 3))
        for out in range(size, 40):
            expected = torch.nn.functional.interpolate(
                torch.from_numpy(x.T[None].copy()), size=out, mode="area"
            )[0].T.numpy()
            actual = interpolate(area_taps(size, out), x)
            assert_close(actual, expected, 1e-7, f"{size} to {out}")


def test_area_of_fewer_points_is_refused():
    with pytest.raises(ValueError, match="from 4 to 3 points; expected at least as"):
        area_taps(4, 3)
