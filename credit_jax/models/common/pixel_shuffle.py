"""Upsampling by convolution and pixel shuffle."""

from __future__ import annotations

import jax
from flax import nnx

from credit_jax.nn.context import Context
from credit_jax.nn.layers import Conv, GroupNorm
from credit_jax.parallel.domain.shuffle import add, pixel_shuffle_field
from credit_jax.parallel.params.initializers import constant, icnr, xavier_normal
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.scopes import DECODER


class UpBlock(nnx.Module):
    """Convolution, pixel shuffle to twice the grid, sharpening, two residual layers."""

    scale = 2

    def __init__(self, channel_in: int, channel_out: int, num_groups: int) -> None:
        self.conv = Conv(
            channel_in,
            channel_out * self.scale**2,
            3,
            padding=1,
            kernel_init=icnr(9 * channel_in, self.scale),
            bias_init=constant(0.0),
        )
        self.sharp = Conv(
            channel_out,
            channel_out,
            3,
            padding=1,
            kernel_init=xavier_normal(9 * channel_out, 9 * channel_out),
            bias_init=constant(0.0),
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


class Head(nnx.Module):
    """Final upsampling: convolution, pixel shuffle, convolution to the output."""

    scale = 2

    def __init__(self, channel_in: int, channel_out: int) -> None:
        self.conv = Conv(
            channel_in,
            channel_out * self.scale**2,
            3,
            padding=1,
            kernel_init=icnr(9 * channel_in, self.scale),
            bias_init=constant(0.0),
        )
        self.out = Conv(channel_out, channel_out, 3, padding=1)

    @jax.named_scope(DECODER)
    def __call__(self, field: Field, context: Context) -> Field:
        field = pixel_shuffle_field(self.conv(field), self.scale)
        return self.out(field, field.layout)
