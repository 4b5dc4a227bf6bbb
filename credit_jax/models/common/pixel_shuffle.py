"""Upsampling by convolution and pixel shuffle."""

from __future__ import annotations

import jax
from flax import nnx

from credit_jax.nn.context import Context
from credit_jax.nn.layers import Conv, GroupNorm
from credit_jax.parallel.domain.rearrange import add, pixel_shuffle_field
from credit_jax.parallel.params.initializers import constant, icnr, xavier_normal
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.scopes import DECODER


class PixelShuffleBlock(nnx.Module):
    """Convolution, pixel shuffle to twice the grid, sharpening, two residual layers.

    Args of the constructor:
        channel_in, channel_out: numbers of channels.
        num_groups: number of groups of the norms.
        smooth: whether to initialize the kernel before the shuffle by `icnr` instead of
            torch's default.
        sharp_spectral_norm: whether spectral norm applies to the sharpening.
    """

    scale = 2

    def __init__(
        self,
        channel_in: int,
        channel_out: int,
        num_groups: int,
        *,
        smooth: bool = True,
        sharp_spectral_norm: bool = True,
    ) -> None:
        self.conv = _shuffled_conv(channel_in, channel_out, self.scale, smooth)
        self.sharp = Conv(
            channel_out,
            channel_out,
            3,
            padding=1,
            kernel_init=xavier_normal(9 * channel_out, 9 * channel_out),
            bias_init=constant(0.0),
            spectral_norm=sharp_spectral_norm,
        )
        self.residual_conv_0 = Conv(channel_out, channel_out, 3, padding=1)
        self.residual_norm_0 = GroupNorm(num_groups, channel_out)
        self.residual_conv_1 = Conv(channel_out, channel_out, 3, padding=1)
        self.residual_norm_1 = GroupNorm(num_groups, channel_out)

    @jax.named_scope(DECODER)
    def __call__(self, field: Field, context: Context) -> Field:
        field = pixel_shuffle_field(self.conv(field), self.scale)
        rows = field.layout
        field = add(field, self.sharp(field, rows))
        x = self.residual_norm_0(self.residual_conv_0(field, rows))
        x = x.like(jax.nn.silu(x.data))
        x = self.residual_norm_1(self.residual_conv_1(x, rows))
        return field.like(jax.nn.silu(x.data) + field.data)


class PixelShuffleHead(nnx.Module):
    """Final upsampling: convolution, pixel shuffle, convolution to the output.

    Args of the constructor:
        channel_in, channel_out: numbers of channels.
        smooth: as for `PixelShuffleBlock`.
    """

    scale = 2

    def __init__(
        self, channel_in: int, channel_out: int, *, smooth: bool = True
    ) -> None:
        self.conv = _shuffled_conv(channel_in, channel_out, self.scale, smooth)
        self.out = Conv(channel_out, channel_out, 3, padding=1)

    @jax.named_scope(DECODER)
    def __call__(self, field: Field, context: Context) -> Field:
        field = pixel_shuffle_field(self.conv(field), self.scale)
        return self.out(field, field.layout)


def _shuffled_conv(channel_in: int, channel_out: int, scale: int, smooth: bool) -> Conv:
    """Builds the convolution before a pixel shuffle."""
    kernel_init = icnr(9 * channel_in, scale) if smooth else None
    bias_init = constant(0.0) if smooth else None
    return Conv(
        channel_in,
        channel_out * scale**2,
        3,
        padding=1,
        kernel_init=kernel_init,
        bias_init=bias_init,
    )
