"""Operations on fields of one device against those of CREDIT and torch."""

import jax
import numpy as np
import pytest
import torch

from credit_jax.parallel.domain.norm import group_norm
from credit_jax.parallel.domain.pool import resize_bilinear
from credit_jax.parallel.domain.rearrange import crop_globe, pad_globe
from credit_jax.parallel.domain.windows import (
    group_layout,
    merge,
    partition,
    window_layout,
)
from credit_jax.parallel.rows.layout import Field, block_layout
from tests.support.credit_modules import credit_attribute
from tests.support.gradients import assert_same, draw, jax_values, torch_values


def on_field(op):
    """Returns an operation on fields as a function of arrays."""

    def run(x, *weights):
        return op(Field(x, block_layout(x.shape[1])), *weights).data

    return run


def as_credit(function):
    """Adapts a function of CREDIT's (batch, channel, time, lat, lon) to NHWC."""

    def run(x):
        return function(x.permute(0, 3, 1, 2)[:, :, None])[:, :, 0].permute(0, 2, 3, 1)

    return run


# CREDIT's earth padding with rows at one pole only appends the whole field at the
# other, and its mirror padding cannot be removed then: no case here.
@pytest.mark.parametrize(
    ("mode", "lat", "lon"),
    [
        ("earth", (3, 3), (2, 2)),
        ("earth", (1, 5), (0, 3)),
        ("earth", (0, 0), (4, 1)),
        ("earth", (9, 9), (0, 0)),
        ("mirror", (3, 3), (2, 2)),
        ("mirror", (1, 5), (6, 0)),
        ("mirror", (8, 8), (8, 8)),
    ],
)
def test_padding_is_that_of_credit(credit, mode, lat, lon):
    padding = credit_attribute("boundary_padding", "TensorPadding")(
        mode=mode, pad_lat=lat, pad_lon=lon
    )
    x = draw((2, 9, 8, 3))
    pad = on_field(lambda f: pad_globe(f, mode=mode, lat=lat, lon=lon))
    what = f"{mode} {lat} {lon}"
    actual = jax_values(pad, x)
    assert_same(actual, torch_values(as_credit(padding.pad), x), what, value=0)
    crop = on_field(lambda f: crop_globe(f, lat=lat, lon=lon))
    expected = torch_values(as_credit(padding.unpad), actual[0])
    if mode == "earth" or (min(lat) and min(lon)):
        assert_same(jax_values(crop, actual[0]), expected, f"crop {what}", value=0)
    assert np.array_equal(jax_values(crop, actual[0])[0], x), "crop undoes pad"


def test_padding_of_an_odd_number_of_columns(credit):
    padding = credit_attribute("boundary_padding", "TensorPadding")(
        mode="earth", pad_lat=(2, 2), pad_lon=(0, 0)
    )
    x = draw((1, 5, 7, 1))
    pad = on_field(lambda f: pad_globe(f, mode="earth", lat=(2, 2), lon=(0, 0)))
    expected = torch_values(as_credit(padding.pad), x)
    assert_same(jax_values(pad, x), expected, "7 columns", value=0)


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"mode": "polar", "lat": (1, 1), "lon": (1, 1)}, "expected 'earth' or"),
        ({"mode": "earth", "lat": (6, 1), "lon": (1, 1)}, "can add 0 to 5 rows"),
        ({"mode": "mirror", "lat": (5, 1), "lon": (1, 1)}, "can add 0 to 4 rows"),
        ({"mode": "earth", "lat": (1, 1), "lon": (1, 5)}, "0 to 4 columns"),
        ({"mode": "earth", "lat": (-1, 1), "lon": (1, 1)}, r"is \[-1, 1\]"),
    ],
)
def test_padding_that_does_not_fit(keywords, text):
    field = Field(jax.numpy.zeros((1, 5, 4, 1)), block_layout(5))
    with pytest.raises(ValueError, match=text):
        pad_globe(field, **keywords)


@pytest.mark.parametrize(
    ("rows", "columns", "window"), [(12, 8, 4), (6, 9, 3), (4, 4, 1)]
)
@pytest.mark.parametrize("kind", ["short", "long"])
def test_windows_are_those_of_credit(credit, kind, rows, columns, window):
    from einops import rearrange

    x = draw((2, rows, columns, 3))
    pattern = "b (h s1) (w s2) d -> b (h w) (s1 s2) d"
    if kind == "long":
        pattern = "b (s1 h) (s2 w) d -> b (h w) (s1 s2) d"
    expected = rearrange(x, pattern, s1=window, s2=window)
    layout = window_layout if kind == "short" else group_layout
    blocks = block_layout(rows)
    field = Field(jax.numpy.asarray(x), layout(blocks, rows, window))
    windows = partition(field, kind, window)
    assert np.array_equal(windows, expected)
    assert np.array_equal(merge(windows, field, kind, window).data, x)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", [(9, 8), (13, 20), (5, 3), (9, 16), (1, 1), (181, 8)])
def test_bilinear_is_that_of_torch(size, align_corners):
    def torch_resize(x):
        out = torch.nn.functional.interpolate(
            x.permute(0, 3, 1, 2),
            size=size,
            mode="bilinear",
            align_corners=align_corners,
        )
        return out.permute(0, 2, 3, 1)

    x = draw((2, 9, 8, 3))
    resize = on_field(lambda f: resize_bilinear(f, size, align_corners=align_corners))
    assert_same(jax_values(resize, x), torch_values(torch_resize, x), f"to {size}")


@pytest.mark.parametrize(("channels", "num_groups"), [(6, 2), (6, 6), (6, 1)])
def test_group_norm_is_that_of_torch(channels, num_groups):
    def torch_norm(x, scale, bias):
        x = x.permute(0, 3, 1, 2)
        out = torch.nn.functional.group_norm(x, num_groups, scale, bias, 1e-5)
        return out.permute(0, 2, 3, 1)

    x = 3 + 2 * draw((2, 5, 7, channels))
    scale, bias = draw((channels,), seed=1), draw((channels,), seed=2)
    norm = on_field(lambda f, s, b: group_norm(f, s, b, num_groups=num_groups))
    expected = torch_values(torch_norm, x, scale, bias)
    assert_same(jax_values(norm, x, scale, bias), expected, f"{num_groups} groups")
