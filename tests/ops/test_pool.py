"""Pooling and interpolation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from credit_jax.ops import (
    area_taps,
    avg_pool2d,
    linear_taps,
    max_pool2d,
    nearest_taps,
)
from tests.support import assert_close
from tests.support.gradients import assert_same, draw, jax_values, torch_values

# name: height, width, kernel, torch's keywords.
AVERAGES = {
    "kernel 2": (8, 6, (2, 2), {}),
    "kernel 2, row over": (9, 7, (2, 2), {}),
    "kernel 2, row over, ceil": (9, 7, (2, 2), {"ceil_mode": True}),
    "unlike kernel": (9, 8, (3, 2), {}),
    "stride 1": (9, 8, (3, 2), {"stride": (1, 1)}),
    "stride 2, kernel 3": (9, 8, (3, 3), {"stride": (2, 2), "padding": (1, 1)}),
    "zeros do not count": (
        9,
        8,
        (3, 4),
        {"stride": (2, 3), "padding": (1, 2), "count_include_pad": False},
    ),
    "ceil, padding": (
        10,
        12,
        (3, 4),
        {"stride": (2, 3), "padding": (1, 2), "ceil_mode": True},
    ),
    "ceil, zeros do not count": (
        10,
        12,
        (3, 4),
        {
            "stride": (2, 3),
            "padding": (1, 2),
            "ceil_mode": True,
            "count_include_pad": False,
        },
    ),
    "ceil, last window in the padding": (
        7,
        6,
        (2, 2),
        {"stride": (4, 3), "padding": (1, 1), "ceil_mode": True},
    ),
    "stride above the kernel": (11, 9, (2, 1), {"stride": (4, 3)}),
    "whole field": (6, 5, (6, 5), {}),
    "kernel above the field": (2, 2, (4, 4), {"padding": (2, 2)}),
}
MAXIMA = {
    **{
        name: (*rest, {k: v for k, v in keywords.items() if k != "count_include_pad"})
        for name, (*rest, keywords) in AVERAGES.items()
    },
    "dilation": (11, 9, (3, 2), {"dilation": (2, 3), "stride": (2, 1)}),
    "dilation, ceil": (
        11,
        9,
        (3, 2),
        {
            "dilation": (2, 3),
            "stride": (3, 2),
            "padding": (1, 1),
            "ceil_mode": True,
        },
    ),
}


def check(op, reference, what, x):
    """Asserts that `op` on NHWC equals torch's `reference` on NCHW."""
    expected = torch_values(
        lambda x: reference(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1), x
    )
    assert_same(jax_values(op, x), expected, what)


def both_sides(keywords):
    pads = tuple((p, p) for p in keywords.get("padding", (0, 0)))
    return {**keywords, "padding": pads}


@pytest.mark.parametrize("name", AVERAGES)
def test_averages_are_those_of_torch(name):
    height, width, kernel, keywords = AVERAGES[name]
    ours = both_sides(keywords)
    check(
        lambda x: avg_pool2d(x, kernel, **ours),
        lambda x: torch.nn.functional.avg_pool2d(x, kernel, **keywords),
        name,
        draw((2, height, width, 3)),
    )


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("name", MAXIMA)
def test_maxima_are_those_of_torch(name, ties):
    height, width, kernel, keywords = MAXIMA[name]
    ours = both_sides(keywords)
    x = draw((2, height, width, 3))
    check(
        lambda x: max_pool2d(x, kernel, **ours),
        lambda x: torch.nn.functional.max_pool2d(x, kernel, **keywords),
        f"{name}, ties {ties}",
        np.round(x) if ties else x,
    )


def test_not_a_number_wins():
    x = np.asarray([[1.0, np.nan, 2.0, 3.0, 4.0, -np.inf]], np.float32)
    out = max_pool2d(jnp.asarray(x[..., None, None]), (3, 1))
    theirs = torch.nn.functional.max_pool2d(
        torch.from_numpy(x)[:, None, :, None], (3, 1)
    )
    np.testing.assert_array_equal(out.reshape(-1), theirs.reshape(-1).numpy())


def test_sums_of_bfloat16_are_wide():
    x = jnp.ones((1, 512, 1, 1), jnp.bfloat16)
    out = avg_pool2d(x, (512, 1))
    assert out.dtype == jnp.bfloat16
    assert out.item() == 1.0


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (lambda x: avg_pool2d(x, (3, 3), padding=((2, 0), (0, 0))), "at most half"),
        (lambda x: max_pool2d(x, (2, 2), padding=((0, -1), (0, 0))), "at most half"),
        (lambda x: avg_pool2d(x, (5, 1)), "reaches over 5 points, but there are 4"),
        (lambda x: max_pool2d(x, (3, 3), dilation=(2, 1)), "reaches over 5 points"),
        (lambda x: avg_pool2d(x, (2, 2), stride=(0, 1)), "expected 1 or more"),
    ],
)
def test_arguments_that_make_no_pooling_are_refused(op, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(op, jnp.zeros((1, 4, 4, 1)))


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
