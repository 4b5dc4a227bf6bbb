"""The decoder of a U-Net, which doubles the grid and concatenates encoder fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import jax
from flax import nnx

from credit_jax.models.unet.config import (
    ArchitectureConfig,
    DecoderNorm,
    InterpolationMode,
)
from credit_jax.models.unet.resnet import relu
from credit_jax.nn.batch_norm import BatchNorm
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Conv
from credit_jax.nn.parameters import parameter
from credit_jax.nn.run_blocks import run_block
from credit_jax.parallel.domain.field_attention import scse
from credit_jax.parallel.domain.norm import group_norm
from credit_jax.parallel.domain.rearrange import join
from credit_jax.parallel.domain.resize import (
    resize_area,
    resize_bilinear,
    resize_nearest,
)
from credit_jax.parallel.params.initializers import constant, kaiming_uniform
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.scopes import NORM

REDUCTION = 16

RESIZE: Mapping[InterpolationMode, Callable[..., Field]] = {
    "nearest": resize_nearest,
    "nearest-exact": partial(resize_nearest, half_pixel=True),
    "area": resize_area,
    "bilinear": resize_bilinear,
}


class SCSEModule(nnx.Module):
    """Gates of channels and of points: segmentation_models_pytorch's SCSEModule."""

    def __init__(self, channels: int) -> None:
        hidden = channels // REDUCTION
        zero = constant(0.0)
        init = kaiming_uniform(channels)
        self.squeeze = parameter(init, (channels, hidden), ("embed", None))
        self.squeeze_bias = parameter(zero, (hidden,), (None,))
        self.expand = parameter(
            kaiming_uniform(hidden), (hidden, channels), (None, "embed")
        )
        self.expand_bias = parameter(zero, (channels,), ("embed",))
        self.points = parameter(init, (channels,), ("embed",))
        self.points_bias = parameter(zero, (), ())

    def __call__(self, field: Field, context: Context) -> Field:
        return scse(
            field,
            self.squeeze[...],
            self.expand[...],
            self.points[...],
            squeeze_bias=self.squeeze_bias[...],
            expand_bias=self.expand_bias[...],
            points_bias=self.points_bias[...],
        )


class InstanceNorm(nnx.Module):
    """torch.nn.InstanceNorm2d on fields: statistics of each sample and channel.

    Args of the constructor:
        channels: number of channels.
        epsilon: added to the variance.
        affine: whether there are scales and biases.
    """

    def __init__(self, channels: int, *, epsilon: float, affine: bool) -> None:
        self.epsilon = epsilon
        self.affine = affine
        if affine:
            self.scale = parameter(constant(1.0), (channels,), ("embed",))
            self.bias = parameter(constant(0.0), (channels,), ("embed",))

    @jax.named_scope(NORM)
    def __call__(self, field: Field, context: Context) -> Field:
        affine = (self.scale[...], self.bias[...]) if self.affine else ()
        channels = field.data.shape[-1]
        return group_norm(field, *affine, num_groups=channels, epsilon=self.epsilon)


def _norm(config: DecoderNorm, channels: int) -> BatchNorm | InstanceNorm | None:
    if config.type == "batchnorm":
        return BatchNorm(channels, momentum=config.momentum, epsilon=config.eps)
    if config.type == "instancenorm":
        return InstanceNorm(channels, epsilon=config.eps, affine=bool(config.affine))
    return None


class ConvReLU(nnx.Module):
    """segmentation_models_pytorch's Conv2dReLU: 3 x 3 convolution, norm, ReLU.

    Args of the constructor:
        channel_in, channel_out: numbers of channels.
        norm: kind of normalization; without one the convolution has a bias.
    """

    def __init__(self, channel_in: int, channel_out: int, norm: DecoderNorm) -> None:
        self.conv = Conv(
            channel_in,
            channel_out,
            3,
            padding=1,
            use_bias=norm.type == "identity",
            kernel_init=kaiming_uniform(9 * channel_in),
            bias_init=constant(0.0),
            spectral_norm=False,
        )
        self.norm = _norm(norm, channel_out)

    def __call__(self, field: Field, context: Context) -> Field:
        field = self.conv(field)
        return relu(field if self.norm is None else self.norm(field, context))


class DecoderBlock(nnx.Module):
    """Interpolation, join, attention; (conv, norm, ReLU) twice, attention.

    Args of the constructor:
        channel_in: number of channels of the coarse field.
        channel_skip: number of channels of the concatenated field; 0 for none, in which
            case the first attention has parameters but is not applied, as in
            segmentation_models_pytorch.
        channel_out: number of channels of the output.
        config: keys of the architecture.
    """

    def __init__(
        self,
        channel_in: int,
        channel_skip: int,
        channel_out: int,
        config: ArchitectureConfig,
    ) -> None:
        self.resize = RESIZE[config.decoder_interpolation]
        joined = channel_in + channel_skip
        self.attention_1 = SCSEModule(joined)
        self.layers = nnx.List(
            ConvReLU(width, channel_out, config.decoder_norm)
            for width in (joined, channel_out)
        )
        self.attention_2 = SCSEModule(channel_out)

    def __call__(
        self,
        field: Field,
        skip: Field | None,
        context: Context,
        *,
        size: tuple[int, int],
    ) -> Field:
        field = self.resize(field, size)
        if skip is not None:
            field = self.attention_1(join(field, skip), context)
        for layer in self.layers:
            field = layer(field, context)
        return self.attention_2(field, context)


class UNetDecoder(nnx.Module):
    """Decodes the fields of the encoder to the grid.

    Args of the constructor:
        config: keys of the architecture.
    """

    def __init__(self, config: ArchitectureConfig) -> None:
        encoder = config.sizes.channels[: config.encoder_depth]
        channels = config.decoder_channels
        widths = (encoder[-1], *channels[:-1])
        skips = (*reversed(encoder[:-1]), 0)
        self.blocks = nnx.List(
            DecoderBlock(width, skip, channel, config)
            for width, skip, channel in zip(widths, skips, channels, strict=True)
        )

    def __call__(
        self, fields: Sequence[Field], grid: tuple[int, int], context: Context
    ) -> Field:
        """Returns the output of the last block.

        Args:
            fields: fields of the encoder, finest first.
            grid: rows and columns of the result.
            context: context of the forward pass.
        """
        *finer, field = fields
        skips = [*reversed(finer), None]
        for block, skip in zip(self.blocks, skips, strict=True):
            size = grid if skip is None else (skip.layout.size, skip.data.shape[2])
            field = run_block(context, block, field, skip, size=size)
        return field
