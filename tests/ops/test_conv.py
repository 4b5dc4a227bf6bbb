"""Convolutions, pooling and interpolation beside torch's and CREDIT's."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.nn.functional import interpolate

from credit_jax.ops import area_taps, linear_taps, nearest_taps
from credit_jax.parallel.domain.conv import periodic_conv2d_field
from tests.ops import cases
from tests.support import assert_close
from tests.support.credit_modules import credit_attribute
from tests.support.gradients import assert_same, draw, jax_values, torch_values

ROWS = cases.CONV | cases.TRANSPOSED | cases.POOLS


# torch warns for even kernels with "same" that it copies the input.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("name", ROWS)
def test_values_and_gradients_are_torchs(name):
    row = ROWS[name]
    x, *weights = row.arrays()
    # Of equal maxima the first has the gradient.
    for ties in (False, True)[: 1 + (row.kind == "maximum")]:
        arrays = np.round(x) if ties else x, *weights
        actual, expected = (
            jax_values(row.ours, *arrays),
            torch_values(row.theirs, *arrays),
        )
        assert_same(actual, expected, f"{name}, ties {ties}")


# name: rows, columns, kernel, padding.
PERIODIC = {
    "3x3": (7, 8, (3, 3), 1),
    "7x7": (7, 8, (7, 7), 3),
    "even": (6, 9, (4, 2), 2),
    "no padding": (6, 9, (3, 3), 0),
    "most rows": (4, 9, (2, 3), 3),
    "once around": (9, 3, (3, 3), 3),
}


@pytest.mark.reference
@pytest.mark.parametrize("name", PERIODIC)
def test_periodic_convolution_is_that_of_credit(credit, name):
    rows, columns, kernel, padding = PERIODIC[name]
    conv = credit_attribute("models.unet_diffusion", "PeriodicConv2d")(
        2, 3, kernel, padding=padding
    )

    def theirs(x, kernel, bias):
        weights = {"conv.weight": kernel.permute(3, 2, 0, 1), "conv.bias": bias}
        out = torch.func.functional_call(conv, weights, x.movedim(-1, 1))
        return out.movedim(1, -1)

    def ours(x, kernel, bias):
        periodic = cases.of_arrays(periodic_conv2d_field)
        return periodic(x, kernel, padding=padding) + bias[None, None, None]

    arrays = draw((2, rows, columns, 2)), draw((*kernel, 2, 3), 1), draw((3,), 2)
    assert_same(jax_values(ours, *arrays), torch_values(theirs, *arrays), name)


def test_not_a_number_wins():
    x = np.asarray([[1.0, np.nan, 2.0, 3.0, 4.0, -np.inf]], np.float32)
    out = cases.max_pool2d(jnp.asarray(x[..., None, None]), (3, 1))
    theirs = torch.nn.functional.max_pool2d(
        torch.from_numpy(x)[:, None, :, None], (3, 1)
    )
    np.testing.assert_array_equal(out.reshape(-1), theirs.reshape(-1).numpy())


def test_sums_of_bfloat16_are_wide():
    out = cases.avg_pool2d(jnp.ones((1, 512, 1, 1), jnp.bfloat16), (512, 1))
    assert out.dtype == jnp.bfloat16
    assert out.item() == 1.0


SIZES = [(5, 5), (4, 9), (9, 4), (181, 45), (45, 181), (180, 181), (721, 240)]
SIZES += [(192, 181), (1, 3), (3, 1), (2, 640)]


def between(taps, x):
    weight = taps.weight.astype(x.dtype)[:, None]
    return x[taps.low] * (1 - weight) + x[taps.high] * weight


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("size", "out"), SIZES)
def test_linear_is_that_of_torch(size, out, align_corners):
    def theirs(x):
        mode = {"mode": "linear", "align_corners": align_corners}
        return interpolate(x.T[None], size=out, **mode)[0].T

    x, what = draw((size, 3)), f"{size} to {out}"
    taps = linear_taps(size, out, align_corners=align_corners, dtype=np.float32)
    actual = jax_values(lambda x: between(taps, x), x)
    assert_same(actual, torch_values(theirs, x), what)
    x = x.astype(np.float64)
    actual = between(linear_taps(size, out, align_corners=align_corners), x)
    expected = theirs(torch.from_numpy(x)).numpy()
    assert_close(actual, expected, 1e-14, f"{what}, float64")


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_is_that_of_torch_for_every_size(mode):
    """Of two-dimensional data; for others torch rounds nearest-exact differently."""
    wrong = []
    further = [*SIZES, (640, 721), (721, 361), (7, 700)] if mode == "nearest" else []
    for size, out in [*np.ndindex(79, 79), *further]:
        size, out = (size, out) if (size, out) in further else (size + 1, out + 1)
        rows = torch.arange(size, dtype=torch.float32)[None, None, None]
        expected = interpolate(rows, size=(1, out), mode=mode)
        actual = nearest_taps(size, out, half_pixel=mode == "nearest-exact")
        if actual.tolist() != expected[0, 0, 0].int().tolist():
            wrong.append((size, out))
    assert not wrong, f"{len(wrong)} pairs of sizes differ, first {wrong[:5]}"


@pytest.mark.slow
def test_area_is_that_of_torch_for_every_larger_size():
    for size in range(1, 40):
        x = draw((size, 3))
        for out in range(size, 40):
            theirs = interpolate(torch.from_numpy(x.T[None].copy()), out, mode="area")
            actual = between(area_taps(size, out), x)
            assert_close(actual, theirs[0].T.numpy(), 1e-7, f"{size} to {out}")
