"""PeriodicConv2d and the patch embeddings against CREDIT's own classes."""

import jax.numpy as jnp
import pytest

from credit_jax.ops import layer_norm, patch_embed2d, patch_embed3d, periodic_conv2d
from tests.support.credit_modules import credit_attribute
from tests.support.gradients import assert_same, draw, jax_values, torch_values

# name: rows, columns, kernel, padding.
PERIODIC = {
    "3x3": (7, 8, (3, 3), 1),
    "7x7": (7, 8, (7, 7), 3),
    "even": (6, 9, (4, 2), 2),
    "no padding": (6, 9, (3, 3), 0),
    "most rows": (4, 9, (2, 3), 3),
    "once around": (9, 3, (3, 3), 3),
}


def nchw(x):
    return x.permute(0, 3, 1, 2)


@pytest.mark.reference
@pytest.mark.parametrize("name", PERIODIC)
def test_periodic_convolution_is_that_of_credit(credit, name):
    import torch

    rows, columns, kernel, padding = PERIODIC[name]
    conv = credit_attribute("models.unet_diffusion", "PeriodicConv2d")(
        2, 3, kernel, padding=padding
    )

    def theirs(x, kernel, bias):
        weights = {"conv.weight": kernel.permute(3, 2, 0, 1), "conv.bias": bias}
        out = torch.func.functional_call(conv, weights, nchw(x))
        return out.permute(0, 2, 3, 1)

    def ours(x, kernel, bias):
        y = periodic_conv2d(x, kernel, padding=padding)
        return y + bias.reshape(1, 1, 1, -1)

    arrays = draw((2, rows, columns, 2)), draw((*kernel, 2, 3), 1), draw((3,), 2)
    assert_same(jax_values(ours, *arrays), torch_values(theirs, *arrays), name)


@pytest.mark.parametrize("padding", [-1, 4])
def test_padding_that_the_field_has_not_is_refused(padding):
    x, kernel = jnp.zeros((1, 4, 6, 1)), jnp.zeros((3, 3, 1, 1))
    with pytest.raises(
        ValueError, match="4 rows and 6 columns can be padded with 0 to 3"
    ):
        periodic_conv2d(x, kernel, padding=padding)


@pytest.mark.reference
def test_patches_are_those_of_credits_swin(credit):
    import torch

    embed = credit_attribute("models.swin", "PatchEmbed")(
        (9, 8), (4, 2), 2, 6, torch.nn.LayerNorm
    )

    def theirs(x, kernel, bias, scale, shift):
        weights = {
            "proj.weight": kernel.permute(3, 2, 0, 1),
            "proj.bias": bias,
            "norm.weight": scale,
            "norm.bias": shift,
        }
        out = torch.func.functional_call(embed, weights, nchw(x))
        return out.permute(0, 2, 3, 1)

    def ours(x, kernel, bias, scale, shift):
        return layer_norm(patch_embed2d(x, kernel, bias), scale, shift)

    arrays = [draw((2, 9, 8, 2)), draw((4, 2, 2, 6), 1)]
    arrays += [draw((6,), seed) for seed in (2, 3, 4)]
    assert_same(jax_values(ours, *arrays), torch_values(theirs, *arrays), "Swin")


@pytest.mark.reference
def test_cubes_are_those_of_credits_fuxi(credit):
    import torch

    embed = credit_attribute("models.fuxi", "CubeEmbedding")((2, 9, 8), (2, 4, 2), 3, 6)

    def theirs(x, kernel, bias, scale, shift):
        weights = {
            "proj.weight": kernel.permute(4, 3, 0, 1, 2),
            "proj.bias": bias,
            "norm.weight": scale,
            "norm.bias": shift,
        }
        out = torch.func.functional_call(embed, weights, x.permute(0, 4, 1, 2, 3))
        return out.permute(0, 2, 3, 4, 1)

    def ours(x, kernel, bias, scale, shift):
        return layer_norm(patch_embed3d(x, kernel, bias), scale, shift)

    arrays = [draw((2, 2, 9, 8, 3)), draw((2, 4, 2, 3, 6), 1)]
    arrays += [draw((6,), seed) for seed in (2, 3, 4)]
    assert_same(jax_values(ours, *arrays), torch_values(theirs, *arrays), "FuXi")
