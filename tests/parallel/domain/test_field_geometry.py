"""Pools, shifts, resizes and attention on fields of one device against torch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from credit_jax.ops import RunningStatistics
from credit_jax.parallel.domain.attention import (
    CoordinateWeights,
    coordinate_attention,
    efficient_channel_attention,
    scse,
    spatial_attention,
    squeeze_excite,
)
from credit_jax.parallel.domain.norm import group_norm
from credit_jax.parallel.domain.pool import (
    global_mean_pool,
    mean_over,
    resize_bilinear,
    resize_nearest,
)
from credit_jax.parallel.domain.rearrange import crop_globe, pad_globe, roll_field
from credit_jax.parallel.domain.windows import (
    group_layout,
    merge,
    partition,
    window_layout,
)
from credit_jax.parallel.rows.layout import Field, block_layout
from tests.parallel.domain.field_cases import RESIZE
from tests.support import assert_close
from tests.support.credit_modules import credit_attribute
from tests.support.gradients import assert_same, draw, jax_values, torch_values

DIMS = pytest.mark.parametrize("dim", [1, 2])


def on_field(op, dim=1):
    """Returns an operation on fields as a function of arrays."""

    def run(x, *weights):
        out = op(Field(x, block_layout(x.shape[dim], dim=dim)), *weights)
        return out.data if isinstance(out, Field) else out

    return run


def nchw(function):
    """Returns torch's channel-first function for channel-last arrays."""
    return lambda x, *rest: function(x.movedim(-1, 1), *rest).movedim(1, -1)


@DIMS
@pytest.mark.parametrize(
    ("mode", "size"),
    [
        *(
            ("nearest", size)
            for size in [(9, 8), (18, 16), (13, 3), (4, 20), (1, 1), (27, 8)]
        ),
        *(("nearest-exact", size) for size in [(13, 3), (18, 15)]),
        *(("area", size) for size in [(17, 16), (13, 8), (9, 15)]),
    ],
)
def test_nearest_is_that_of_torch(mode, size, dim):
    def expected(x):
        return torch.nn.functional.interpolate(x, size=size, mode=mode)

    x = draw((2, 9, 8, 3))
    resize = on_field(lambda f: RESIZE[mode](f, size), dim)
    assert_same(
        jax_values(resize, x),
        torch_values(nchw(expected), x),
        f"to {size}, dim {dim}",
        value=0,
        gradient=1e-6,
    )


@pytest.mark.parametrize("align_corners", [False, True])
def test_bilinear_of_split_longitude_is_that_of_torch(align_corners):
    def expected(x):
        return torch.nn.functional.interpolate(
            x, size=(13, 20), mode="bilinear", align_corners=align_corners
        )

    x = draw((2, 9, 8, 3))
    resize = on_field(
        lambda f: resize_bilinear(f, (13, 20), align_corners=align_corners), 2
    )
    assert_same(jax_values(resize, x), torch_values(nchw(expected), x), "dim 2")


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("mode", ["nearest", "trilinear"])
def test_volumes_are_resized_as_in_torch(mode, dim):
    def expected(x):
        return torch.nn.functional.interpolate(x, size=(4, 7, 9), mode=mode)

    x = draw((1, 3, 5, 4, 2))
    actual = jax_values(on_field(lambda f: RESIZE[mode](f, (4, 7, 9)), dim), x)
    assert_same(actual, torch_values(nchw(expected), x), f"{mode}, dim {dim}")


def test_a_size_of_other_dims():
    field = Field(jnp.zeros((1, 4, 5, 2)), block_layout(4))
    with pytest.raises(ValueError, match=r"size is \(3, 4, 5\); expected 2 numbers"):
        resize_nearest(field, (3, 4, 5))


@DIMS
@pytest.mark.parametrize("shift", [(2, -3), (0, 5), (-20, 19), (9, 8), (0, 0)])
def test_roll_is_that_of_torch(shift, dim):
    x = draw((2, 9, 8, 3))
    expected = torch_values(lambda x: torch.roll(x, shift, (1, 2)), x)
    actual = jax_values(on_field(lambda f: roll_field(f, shift), dim), x)
    assert_same(actual, expected, f"{shift}, dim {dim}", value=0, gradient=0)


# name: ours, torch's on (batch, channel, lat, lon).
POOLS = {
    "mean": (
        lambda f: global_mean_pool(f)[:, None, None],
        torch.nn.AdaptiveAvgPool2d(1),
    ),
    "over lat": (lambda f: mean_over(f, 1), torch.nn.AdaptiveAvgPool2d((1, None))),
    "over lon": (lambda f: mean_over(f, 2), torch.nn.AdaptiveAvgPool2d((None, 1))),
}


@DIMS
@pytest.mark.parametrize("name", POOLS)
def test_pools_are_those_of_torch(name, dim):
    ours, theirs = POOLS[name]
    for what, x in {
        "normal": draw((2, 9, 8, 3)),
        "equal maxima": np.round(draw((2, 9, 8, 3))),
    }.items():
        actual = jax_values(on_field(ours, dim), x)
        assert_same(actual, torch_values(nchw(theirs), x), f"{name}, {what}")


def test_group_norm_of_volumes_is_that_of_torch():
    x, scale, bias = draw((2, 3, 4, 5, 6)), draw((6,), seed=1), draw((6,), seed=2)

    def expected(x, scale, bias):
        return torch.nn.functional.group_norm(x, 3, scale, bias)

    norm = on_field(lambda f, s, b: group_norm(f, s, b, num_groups=3), 2)
    actual = jax_values(norm, x, scale, bias)
    assert_same(actual, torch_values(nchw(expected), x, scale, bias), "3 groups")


@pytest.mark.parametrize("mode", ["earth", "mirror"])
def test_padding_of_split_longitude_is_that_of_split_latitude(mode):
    x = draw((2, 9, 7, 3))
    keywords = {"mode": mode, "lat": (3, 2), "lon": (1, 5)}
    first, second = (
        jax_values(on_field(lambda f: pad_globe(f, **keywords), dim), x)
        for dim in (1, 2)
    )
    assert_same(second, first, mode, value=0, gradient=1e-6)
    crop = on_field(lambda f: crop_globe(f, lat=(3, 2), lon=(1, 5)), 2)
    assert np.array_equal(crop(jnp.asarray(second[0])), x), "crop undoes pad"


@pytest.mark.parametrize("window", [3, (2, 3)])
@pytest.mark.parametrize("kind", ["short", "long"])
def test_windows_of_split_longitude_are_those_of_split_latitude(kind, window):
    rearrange = pytest.importorskip("einops").rearrange
    x = draw((2, 6, 9, 3))
    sides = (window, window) if isinstance(window, int) else window
    layout = window_layout if kind == "short" else group_layout
    pattern = "b (h s1) (w s2) d -> b (h w) (s1 s2) d"
    if kind == "long":
        pattern = "b (s1 h) (s2 w) d -> b (h w) (s1 s2) d"
    expected = rearrange(x, pattern, s1=sides[0], s2=sides[1])
    for dim in (1, 2):
        blocks = block_layout(x.shape[dim], dim=dim)
        field = Field(jnp.asarray(x), layout(blocks, x.shape[dim], sides[dim - 1]))
        tokens = partition(field, kind, window)
        assert np.array_equal(tokens, expected), f"dim {dim}"
        assert np.array_equal(merge(tokens, field, kind, window).data, x), f"dim {dim}"


def module_values(module, x):
    """Returns a module's channel-last output, and gradients by x and parameters."""
    names = [name for name, _ in module.named_parameters()]
    values = [p.detach().numpy() for p in module.parameters()]

    def run(x, *weights):
        parameters = dict(zip(names, weights, strict=True))
        return nchw(lambda x: torch.func.functional_call(module, parameters, (x,)))(x)

    return values, torch_values(run, x, *values)


def matrix(kernel):
    """Returns the (out, in, 1, 1) kernel of a 1 x 1 convolution as (in, out)."""
    return kernel.reshape(kernel.shape[:2]).T


def test_squeeze_and_excite_is_that_of_torch():
    layers = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Conv2d(6, 2, 1)]
    layers += [torch.nn.ReLU(), torch.nn.Conv2d(2, 6, 1), torch.nn.Sigmoid()]

    class Excite(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = torch.nn.Sequential(*layers)

        def forward(self, x):
            return x * self.gate(x)

    def ours(field, squeeze, low, expand, high):
        return squeeze_excite(
            field,
            matrix(squeeze),
            matrix(expand),
            squeeze_bias=low,
            expand_bias=high,
        )

    x = 1 + draw((2, 5, 4, 6))
    values, expected = module_values(Excite(), x)
    assert_same(jax_values(on_field(ours), x, *values), expected, "with biases")


def test_efficient_channel_attention_is_that_of_credit(credit):
    block = credit_attribute("models.unet_attention_modules", "ECABlock")
    x = 1 + draw((2, 5, 4, 8))
    values, expected = module_values(block(8), x)

    def ours(field, kernel):
        return efficient_channel_attention(field, kernel[0, 0])

    assert_same(jax_values(on_field(ours), x, *values), expected, "ECABlock")


@DIMS
@pytest.mark.parametrize("training", [True, False])
def test_coordinate_attention_is_that_of_credit(credit, training, dim):
    block = credit_attribute("models.unet_attention_modules", "CoordinateAttention")
    module = block(6).train(training)
    x = 1 + draw((2, 5, 4, 6))
    values, expected = module_values(module, x)

    def attend(x, squeeze, bias, scale, shift, lat, lat_bias, lon, lon_bias):
        weights = CoordinateWeights(
            matrix(squeeze),
            bias,
            scale,
            shift,
            matrix(lat),
            lat_bias,
            matrix(lon),
            lon_bias,
        )
        fresh = RunningStatistics.fresh(8)
        field = Field(x, block_layout(x.shape[dim], dim=dim))
        return coordinate_attention(field, weights, fresh, training=training)

    actual = jax_values(lambda *arrays: attend(*arrays)[0].data, x, *values)
    if training:
        # The norm removes the bias, whose gradient is therefore zero up to rounding.
        small = [grads.pop(2) for grads in (actual[1], expected[1])]
        assert max(np.abs(g).max() for g in small) < 1e-6
    assert_same(actual, expected, f"training {training}, dim {dim}")
    _, running = jax.jit(attend)(x, *values)
    assert running is not None
    seen = module.bn1.running_mean.numpy(), module.bn1.running_var.numpy()
    assert_close(running.mean, seen[0], 1e-6, "running mean")
    assert_close(running.variance, seen[1], 1e-6, "running variance")


@DIMS
def test_spatial_attention_is_that_of_credit(credit, dim):
    block = credit_attribute("models.unet_attention_modules", "LightSpatialAttention")
    x = np.maximum(draw((2, 9, 8, 6)), -0.5)
    values, expected = module_values(block(7), x)

    def ours(field, kernel):
        return spatial_attention(field, kernel.transpose(2, 3, 1, 0))

    actual = jax_values(on_field(ours, dim), x, *values)
    assert_same(actual, expected, f"LightSpatialAttention, dim {dim}")


@pytest.mark.parametrize("depthwise", [False, True])
def test_channels_and_points_are_those_of_credit(credit, depthwise):
    block = credit_attribute("models.unet_attention_modules", "SCSEAttention")
    x = 1 + draw((2, 5, 4, 6))
    values, expected = module_values(block(6, 2, use_depthwise=depthwise), x)

    def ours(field, squeeze, expand, *points):
        own = points[-1].reshape(-1)
        if depthwise:
            own = own * points[0].reshape(-1)
        return scse(field, matrix(squeeze), matrix(expand), own)

    actual = jax_values(on_field(ours), x, *values)
    assert_same(actual, expected, f"SCSEAttention, depthwise {depthwise}")


def test_an_even_kernel_of_spatial_attention():
    field = Field(jnp.zeros((1, 4, 5, 2)), block_layout(4))
    with pytest.raises(ValueError, match="is 3 x 2; expected odd"):
        spatial_attention(field, jnp.zeros((3, 2, 2, 1)))
