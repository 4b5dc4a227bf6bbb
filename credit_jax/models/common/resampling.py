"""Layers between grids: embedding of patches, pixel shuffles, upsampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from credit_jax.nn.context import Context
from credit_jax.nn.field_attention import FIELD_ATTENTION
from credit_jax.nn.layers import Conv, GroupNorm, LayerNorm
from credit_jax.nn.parameters import parameter
from credit_jax.ops.dense import add_bias
from credit_jax.ops.padding import IntPair
from credit_jax.parallel.domain.conv import conv2d_field
from credit_jax.parallel.domain.conv_transpose import conv_transpose2d_field
from credit_jax.parallel.domain.rearrange import add, pixel_shuffle_field
from credit_jax.parallel.domain.resize import resize_bilinear
from credit_jax.parallel.params.initializers import (
    constant,
    icnr,
    torch_uniform,
    xavier_normal,
)
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.scopes import DECODER, EMBEDDING


class PatchEmbed(nnx.Module):
    """CREDIT's CubeEmbedding: convolution with stride = kernel = patch, LayerNorm.

    The kernel covers all frames, which are folded into the channels (channel * time).
    """

    def __init__(
        self, channel_in: int, channel_out: int, frames: int, patch: IntPair
    ) -> None:
        self.patch = patch
        self.proj = _PatchProjection(channel_in, channel_out, (frames, *patch))
        self.norm = LayerNorm(channel_out)

    @jax.named_scope(EMBEDDING)
    def __call__(self, field: Field, context: Context) -> Field:
        field = self.proj(field, self.patch)
        return field.like(self.norm(field.data))


class _PatchProjection(nnx.Module):
    """Projection of patches; its kernel (time, height, width, in, out) is a Conv3d's.

    It has no spectral norm.
    """

    def __init__(self, channel_in: int, channel_out: int, size: Sequence[int]) -> None:
        fan_in = channel_in * size[0] * size[1] * size[2]
        init = torch_uniform(fan_in)
        shape = (size[0], size[1], size[2], channel_in, channel_out)
        dims = (None, None, None, "conv_in", "conv_out")
        self.kernel = parameter(init, shape, dims)
        self.bias = parameter(init, (channel_out,), ("conv_out",))

    def __call__(self, field: Field, patch: IntPair) -> Field:
        *_, channel_out = self.kernel[...].shape
        kernel = jnp.moveaxis(self.kernel[...], 0, 3)
        kernel = kernel.reshape(*patch, -1, channel_out)
        field = conv2d_field(field, kernel, stride=patch)
        return field.like(add_bias(field.data, self.bias[...]))


class PixelShuffleBlock(nnx.Module):
    """Convolution, pixel shuffle to twice the grid, sharpening, two residual layers."""

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
    """Final upsampling: convolution, pixel shuffle, convolution to the output."""

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


class ConvTranspose(nnx.Module):
    """torch.nn.ConvTranspose2d on fields, with bias."""

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
    """Doubles the grid, then two residual layers of convolution and norm, attention."""

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
        self.attention: Any = attention and FIELD_ATTENTION[attention](channel_out)

    @jax.named_scope(DECODER)
    def __call__(self, field: Field, context: Context) -> Field:
        field = self.up(field)
        x = self.residual_norm_0(self.residual_conv_0(field, field.layout))
        x = x.like(jax.nn.silu(x.data))
        x = self.residual_norm_1(self.residual_conv_1(x, field.layout))
        field = add(field, x.like(jax.nn.silu(x.data)))
        return field if self.attention is None else self.attention(field, context)


class UpsampleHead(nnx.Module):
    """Doubles the grid and maps to the channels of the output."""

    def __init__(
        self, channel_in: int, channel_out: int, *, interpolate: bool = False
    ) -> None:
        self.up = doubling(
            channel_in, channel_out, interpolate=interpolate, kernel_size=4, padding=1
        )

    @jax.named_scope(DECODER)
    def __call__(self, field: Field, context: Context) -> Field:
        return self.up(field)
