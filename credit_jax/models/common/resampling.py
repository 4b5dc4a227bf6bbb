"""Layers between grids, and between the arrays of a batch and padded fields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.models.common.config import (
    CorrectedConfig,
    Frames,
    PaddedConfig,
    PaddingConfig,
    Prediction,
)
from credit_jax.named_fields import FieldContext
from credit_jax.nn.context import Context
from credit_jax.nn.layers import FIELD_ATTENTION, Conv, GroupNorm, LayerNorm
from credit_jax.nn.parameters import parameter
from credit_jax.ops.dense import add_bias
from credit_jax.ops.space_to_depth import IntPair
from credit_jax.parallel.compiler import DECODER, EMBEDDING, INPUT, OUTPUT
from credit_jax.parallel.domain import rearrange
from credit_jax.parallel.domain.conv import conv_field, conv_transpose_field
from credit_jax.parallel.domain.pool import resize_bilinear
from credit_jax.parallel.params.spec import constant, icnr, torch_uniform, xavier_normal
from credit_jax.parallel.reductions import FieldReducer
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field, Layout


class PatchEmbed(nnx.Module):
    """CREDIT's CubeEmbedding: convolution with stride = kernel = patch, LayerNorm."""

    # The kernel covers all frames, which are folded into the channels (channel * time).

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
    """Projection of patches; its kernel (time, height, width, in, out): a Conv3d."""

    # It has no spectral norm.

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
        field = conv_field(field, kernel, stride=patch)
        return field.like(add_bias(field.data, self.bias[...]))


class Residual(nnx.Module):
    """Base class of blocks that end with two residual layers of conv and norm."""

    def __init__(self, channels: int, num_groups: int) -> None:
        self.residual_conv_0 = Conv(channels, channels, 3, padding=1)
        self.residual_norm_0 = GroupNorm(num_groups, channels)
        self.residual_conv_1 = Conv(channels, channels, 3, padding=1)
        self.residual_norm_1 = GroupNorm(num_groups, channels)

    def residual(self, field: Field, rows: Layout | None = None) -> Field:
        """Returns the output of both layers, to be added to the field."""
        x = self.residual_norm_0(self.residual_conv_0(field, rows))
        x = x.like(jax.nn.silu(x.data))
        x = self.residual_norm_1(self.residual_conv_1(x, rows))
        return x.like(jax.nn.silu(x.data))


class PixelShuffleBlock(Residual):
    """Convolution, pixel shuffle to a finer grid, sharpening, two residual layers."""

    def __init__(
        self,
        channel_in: int,
        channel_out: int,
        num_groups: int,
        *,
        scale: int = 2,
        smooth: bool = True,
        sharp_spectral_norm: bool = True,
    ) -> None:
        super().__init__(channel_out, num_groups)
        self.scale = scale
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

    @jax.named_scope(DECODER)
    def __call__(self, field: Field, context: Context) -> Field:
        field = rearrange.pixel_shuffle_field(self.conv(field), self.scale)
        field = rearrange.add(field, self.sharp(field, field.layout))
        return field.like(self.residual(field, field.layout).data + field.data)


class PixelShuffleHead(nnx.Module):
    """Final upsampling: convolution, pixel shuffle, convolution to the output."""

    def __init__(
        self, channel_in: int, channel_out: int, *, scale: int = 2, smooth: bool = True
    ) -> None:
        self.scale = scale
        self.conv = _shuffled_conv(channel_in, channel_out, self.scale, smooth)
        self.out = Conv(channel_out, channel_out, 3, padding=1)

    @jax.named_scope(DECODER)
    def __call__(self, field: Field, context: Context) -> Field:
        field = rearrange.pixel_shuffle_field(self.conv(field), self.scale)
        return self.out(field, field.layout)


def _shuffled_conv(channel_in: int, channel_out: int, scale: int, smooth: bool) -> Conv:
    """Builds the convolution before a pixel shuffle."""
    return Conv(
        channel_in,
        channel_out * scale**2,
        3,
        padding=1,
        kernel_init=icnr(9 * channel_in, scale) if smooth else None,
        bias_init=constant(0.0) if smooth else None,
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
        field = conv_transpose_field(
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
    """Builds a layer that doubles the grid."""
    if interpolate:
        return ResizeConv(channel_in, channel_out)
    return ConvTranspose(
        channel_in, channel_out, kernel_size, stride=2, padding=padding
    )


class ResidualUpBlock(Residual):
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
        super().__init__(channel_out, num_groups)
        self.up = doubling(channel_in, channel_out, interpolate=interpolate)
        self.attention: Any = attention and FIELD_ATTENTION[attention](channel_out)

    @jax.named_scope(DECODER)
    def __call__(self, field: Field, context: Context) -> Field:
        field = self.up(field)
        field = rearrange.add(field, self.residual(field, field.layout))
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


# "channel": all frames, channel * time. "mean": the mean of the first two frames.
FrameFold = Literal["channel", "mean"]


def fold_frames(x: Frames, fold: FrameFold) -> Float[Array, "batch rows lon folded"]:
    """Folds the frames of x into channels, NHWC."""
    # fold: see `FrameFold`. "mean" is torch's avg_pool3d with a kernel of two frames: a
    # third frame is ignored, and a single frame is used unchanged.
    if fold == "mean":
        x = x[:, :, :2].mean(2, keepdims=True)
    batch, channels, time, rows, lon = x.shape
    return x.transpose(0, 3, 4, 1, 2).reshape(batch, rows, lon, channels * time)


def mean_problems(frames: int) -> Iterator[str]:
    """Yields an error of a number of frames for the fold "mean"."""
    if frames > 3:
        yield (
            f"model.frames is {frames}; expected 1 to 3: the model takes the mean of "
            "two frames, and CREDIT fails where a third and a fourth make another mean"
        )


def unseen_frames(frames: int) -> dict[str, str]:
    """Returns a note on the key `frames` if the fold "mean" ignores a third frame."""
    why = (
        "3: the model takes the mean of the first two frames and does not see the last"
    )
    return {"frames": f"{why}, as in CREDIT"} if frames == 3 else {}


@jax.named_scope(INPUT)
def enter(
    x: Frames,
    height: int,
    context: Context,
    padding: PaddingConfig | None = None,
    fold: FrameFold = "channel",
) -> Field:
    """Folds frames into channels, converts to an NHWC field, and pads it."""
    field = Field(fold_frames(x, fold), context.rows(height))
    if padding is None:
        return field
    return rearrange.pad_globe(
        field, mode=padding.mode, lat=padding.pad_lat, lon=padding.pad_lon
    )


@jax.named_scope(OUTPUT)
def leave(field: Field, config: PaddedConfig, *, interpolate: bool) -> Prediction:
    """Crops the padding, interpolates to the output grid, and unfolds frames."""
    pad, output = config.padding, config.output
    if pad is not None:
        field = rearrange.crop_globe(field, lat=pad.pad_lat, lon=pad.pad_lon)
    if interpolate:
        field = resize_bilinear(field, (output.height, output.width))
    field = reshard(field, field.layout.to_blocks())
    batch, rows, lon, _ = field.data.shape
    x = field.data.reshape(batch, rows, lon, output.channels, output.frames)
    return x.transpose(0, 3, 4, 1, 2)


def correct(
    config: CorrectedConfig, x: Frames, y: Prediction, context: Context
) -> Prediction:
    """Applies the corrections of `gen1_post_conf` to a prediction, if active."""
    conf = config.gen1_post_conf
    if conf is None or not conf.activate:
        return y
    reducer = FieldReducer(context.rows(config.output.height, dim=3), context.axes)
    return conf.fixers(x, y, FieldContext(reducer))
