"""Upsampling by transposed convolution, or interpolation and convolution."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from credit_jax.nn.context import Context
from credit_jax.nn.field_attention import field_attention
from credit_jax.nn.layers import Conv, GroupNorm
from credit_jax.nn.parameters import parameter
from credit_jax.ops.dense import add_bias
from credit_jax.parallel.domain.conv_transpose import conv_transpose2d_field
from credit_jax.parallel.domain.rearrange import add
from credit_jax.parallel.domain.resize import resize_bilinear
from credit_jax.parallel.params.initializers import torch_uniform
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.scopes import DECODER


class ConvTranspose(nnx.Module):
    """torch.nn.ConvTranspose2d on fields, with bias.

    Args of the constructor:
        channel_in, channel_out: numbers of channels.
        kernel_size, stride: of both dims.
        padding: rows and columns removed from every edge of the output.
    """

    def __init__(
        self,
        channel_in: int,
        channel_out: int,
        kernel_size: int,
        *,
        stride: int,
        padding: int = 0,
    ) -> None:
        # As in torch, which computes fan_in from dim 1 of (in, out, height, width).
        init = torch_uniform(channel_out * kernel_size**2)
        self.stride = stride
        self.padding = padding
        self.kernel = parameter(
            init,
            (kernel_size, kernel_size, channel_in, channel_out),
            (None, None, "conv_in", "conv_out"),
            matrix_out=(3,),
        )
        self.bias = parameter(init, (channel_out,), ("conv_out",))

    def __call__(self, field: Field) -> Field:
        ends = (self.padding, self.padding)
        field = conv_transpose2d_field(
            field,
            self.kernel[...],
            stride=(self.stride, self.stride),
            padding=(ends, ends),
        )
        return field.like(add_bias(field.data, self.bias[...]))


class ResizeConv(nnx.Module):
    """Bilinear interpolation to twice the grid, then a 3 x 3 convolution."""

    def __init__(self, channel_in: int, channel_out: int) -> None:
        self.conv = Conv(channel_in, channel_out, 3, padding=1)

    def __call__(self, field: Field) -> Field:
        rows, columns = field.layout.size, field.row_points
        return self.conv(resize_bilinear(field, (2 * rows, 2 * columns)))


def doubling(
    channel_in: int,
    channel_out: int,
    *,
    interpolate: bool,
    kernel_size: int = 2,
    padding: int = 0,
) -> ResizeConv | ConvTranspose:
    """Builds a layer that doubles the grid.

    Args:
        channel_in, channel_out: numbers of channels.
        interpolate: whether it is a `ResizeConv`, CREDIT's `upsample_v_conv`, or a
            `ConvTranspose`.
        kernel_size, padding: kernel size and padding of the transposed convolution.
    """
    if interpolate:
        return ResizeConv(channel_in, channel_out)
    return ConvTranspose(
        channel_in, channel_out, kernel_size, stride=2, padding=padding
    )


class ResidualUpBlock(nnx.Module):
    """Doubles the grid, then two residual layers of convolution and norm, attention.

    Args of the constructor:
        channel_in, channel_out: numbers of channels.
        num_groups: number of groups of the norms.
        interpolate: see `doubling`.
        attention: one of `nn.field_attention.KINDS`, or None.
    """

    def __init__(
        self,
        channel_in: int,
        channel_out: int,
        num_groups: int,
        *,
        interpolate: bool = False,
        attention: str | None = None,
    ) -> None:
        self.up = doubling(channel_in, channel_out, interpolate=interpolate)
        self.residual_conv_0 = Conv(channel_out, channel_out, 3, padding=1)
        self.residual_norm_0 = GroupNorm(num_groups, channel_out)
        self.residual_conv_1 = Conv(channel_out, channel_out, 3, padding=1)
        self.residual_norm_1 = GroupNorm(num_groups, channel_out)
        last: Any = (
            None if attention is None else field_attention(attention, channel_out)
        )
        self.attention = last

    @jax.named_scope(DECODER)
    def __call__(self, field: Field, context: Context) -> Field:
        field = self.up(field)
        x = self.residual_norm_0(self.residual_conv_0(field, field.layout))
        x = x.like(jax.nn.silu(x.data))
        x = self.residual_norm_1(self.residual_conv_1(x, field.layout))
        field = add(field, x.like(jax.nn.silu(x.data)))
        return field if self.attention is None else self.attention(field, context)


class UpsampleHead(nnx.Module):
    """Doubles the grid and maps to the channels of the output.

    Args of the constructor:
        channel_in, channel_out: numbers of channels.
        interpolate: see `doubling`.
    """

    def __init__(
        self, channel_in: int, channel_out: int, *, interpolate: bool = False
    ) -> None:
        self.up = doubling(
            channel_in, channel_out, interpolate=interpolate, kernel_size=4, padding=1
        )

    @jax.named_scope(DECODER)
    def __call__(self, field: Field, context: Context) -> Field:
        return self.up(field)
