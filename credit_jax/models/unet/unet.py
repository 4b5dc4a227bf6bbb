"""CREDIT's `unet` and `unet_downscaling`: segmentation_models_pytorch's U-Net.

A ResNet encoder, a decoder with gates of channels and points, and a convolution. The
mean of two frames enters the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.models.common.config import register_model
from credit_jax.models.common.resampling import correct, fold_frames
from credit_jax.models.unet.config import (
    Activation,
    ArchitectureConfig,
    DecoderNorm,
    DownscalingUNetConfig,
    InterpolationMode,
    UNetConfig,
    UNetKeys,
)
from credit_jax.models.unet.resnet import ResNetEncoder, relu
from credit_jax.nn.context import Context
from credit_jax.nn.layers import BatchNorm, Conv
from credit_jax.nn.parameters import parameter
from credit_jax.nn.run_blocks import run_block
from credit_jax.parallel.compiler import INPUT, NORM, OUTPUT
from credit_jax.parallel.domain.attention import scse
from credit_jax.parallel.domain.norm import group_norm
from credit_jax.parallel.domain.pool import resize_area, resize_bilinear, resize_nearest
from credit_jax.parallel.domain.rearrange import join
from credit_jax.parallel.params.spec import constant, kaiming_uniform, xavier_uniform
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field
from credit_jax.state_dict.key_table import Rule, below, key_table
from credit_jax.state_dict.torch_model import TorchModel

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
    """torch.nn.InstanceNorm2d on fields: statistics of each sample and channel."""

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


class ConvReLU(nnx.Module):
    """segmentation_models_pytorch's Conv2dReLU: 3 x 3 convolution, norm, ReLU."""

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
        layer: BatchNorm | InstanceNorm | None = None
        if norm.type == "batchnorm":
            layer = BatchNorm(channel_out, momentum=norm.momentum, epsilon=norm.eps)
        elif norm.type == "instancenorm":
            affine = bool(norm.affine)
            layer = InstanceNorm(channel_out, epsilon=norm.eps, affine=affine)
        self.norm = layer

    def __call__(self, field: Field, context: Context) -> Field:
        field = self.conv(field)
        return relu(field if self.norm is None else self.norm(field, context))


class DecoderBlock(nnx.Module):
    """Interpolation, join, attention; (conv, norm, ReLU) twice, attention."""

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
    """Decodes the fields of the encoder to the grid."""

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
        """Returns the output of the last block."""
        *finer, field = fields
        skips = [*reversed(finer), None]
        for block, skip in zip(self.blocks, skips, strict=True):
            size = grid if skip is None else (skip.layout.size, skip.data.shape[2])
            field = run_block(context, block, field, skip, size=size)
        return field


# Functions of the output.
ACTIVATIONS: Mapping[Activation, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
}


class SegmentationHead(nnx.Module):
    """The last convolution, 3 x 3, and the function of the output."""

    def __init__(
        self, channel_in: int, channel_out: int, activation: Activation
    ) -> None:
        self.activation = ACTIVATIONS[activation]
        self.conv = Conv(
            channel_in,
            channel_out,
            3,
            padding=1,
            kernel_init=xavier_uniform(9 * channel_in, 9 * channel_out),
            bias_init=constant(0.0),
            spectral_norm=False,
        )

    def __call__(self, field: Field, context: Context) -> Field:
        field = self.conv(field)
        return field.like(self.activation(field.data))


_GATES = """
    cSE.1.weight  squeeze       o i 1 1 -> i o
    cSE.1.bias    squeeze_bias
    cSE.3.weight  expand        o i 1 1 -> i o
    cSE.3.bias    expand_bias
    sSE.0.weight  points        1 i 1 1 -> i
    sSE.0.bias    points_bias   1 ->
"""
_RESIDUAL = (
    "\n".join(
        f"""
    conv{i + 1}.weight  branch/{i}/conv/kernel  o i h w -> h w i o
    bn{i + 1}           branch/{i}/norm         norm
    """
        for i in range(3)
    )
    + """
    downsample.0.weight  shortcut/conv/kernel  o i h w -> h w i o
    downsample.1         shortcut/norm         norm
"""
)


def _rules() -> Iterator[Rule]:
    """Those of segmentation_models_pytorch's Unet, under "model."."""
    yield from key_table(
        """
        conv1.weight  embed/conv/kernel  o i h w -> h w i o
        bn1           embed/norm         norm
        """,
        "encoder",
        "encoder/stem",
    )
    for layer in ("layer1", "layer2", "layer3", "layer4"):
        torch, path = f"encoder.{layer}", f"encoder/{layer}"
        yield from key_table(_RESIDUAL, f"{torch}.0", f"{path}/first")
        for rule in key_table(_RESIDUAL, f"{torch}.{{d}}", f"{path}/rest"):
            yield replace(rule, first=1)
    for i in (1, 2):
        torch, path = "decoder.blocks.{b}", "decoder/blocks/{b}"
        # The convolution has a bias if there is no norm.
        convolution = f"conv{i}.0 layers/{i - 1}/conv conv"
        norm = f"conv{i}.1 layers/{i - 1}/norm norm"
        yield from key_table(f"{convolution}\n{norm}", torch, path)
        yield from key_table(
            _GATES, f"{torch}.attention{i}.attention", f"{path}/attention_{i}"
        )
    yield from key_table("segmentation_head.0 head/conv conv")


def _block_names(config: UNetKeys) -> list[str]:
    """See `TorchModel.block_names`; Runge-Kutta runs them four times."""
    depth = config.architecture.encoder_depth
    names = ["encoder.relu"]
    for layer in range(1, depth):
        names += [f"encoder.layer{layer}.0", f"encoder.layer{layer}"]
    names += [*(f"decoder.blocks.{i}" for i in range(depth)), "segmentation_head"]
    return [f"model.{name}" for name in names] * (4 if config.rk4_integration else 1)


def _idle_modules(config: UNetKeys) -> list[str]:
    """Layers beyond the encoder's depth, and attention of the block without a skip."""
    depth = config.architecture.encoder_depth
    last = f"model.decoder.blocks.{depth - 1}.attention1"
    return [f"model.encoder.layer{layer}" for layer in range(depth, 5)] + [last]


UNET = TorchModel(
    key_table=below("model", _rules()),
    block_names=_block_names,
    idle_modules=_idle_modules,
)


@register_model(UNetConfig, UNET)
@register_model(DownscalingUNetConfig, UNET)
class UNet(nnx.Module):
    """The U-Net model; see `UNetConfig` for its keys."""

    def __init__(self, config: UNetConfig | DownscalingUNetConfig) -> None:
        self.config = config
        architecture = config.architecture
        self.encoder = ResNetEncoder(config.input_channels, architecture.sizes)
        self.decoder = UNetDecoder(architecture)
        self.head = SegmentationHead(
            architecture.decoder_channels[-1],
            config.output_channels,
            architecture.activation,
        )

    def __call__(
        self, inputs: Mapping[str, Array], context: Context
    ) -> Float[Array, "batch channel_out time_out rows lon"]:
        """Predicts from local samples and rows, in block layout over the domain axis.

        Differs from CREDIT: in training, the statistics of batch norms are those of the
        global batch, not of each data-parallel rank.
        """
        x = inputs["x"]
        with jax.named_scope(INPUT):
            data = fold_frames(context.precision.cast(x), "mean")
        field = Field(data, context.rows(self.config.image_height))
        step = self._runge_kutta if self.config.rk4_integration else self._network
        field = step(field, context)
        with jax.named_scope(OUTPUT):
            y = field.data.transpose(0, 3, 1, 2)[:, :, None].astype(x.dtype)
        return correct(self.config, x, y, context)

    def _network(self, field: Field, context: Context) -> Field:
        grid = field.layout.size, field.data.shape[2]
        fields = self.encoder(field, context, self.config.architecture.encoder_depth)
        decoded = self.decoder(fields, grid, context)
        return reshard(run_block(context, self.head, decoded), field.layout)

    def _runge_kutta(self, field: Field, context: Context) -> Field:
        """Returns (k1 + 2 k2 + 2 k3 + k4) / 6; k1 = f(x), k2 = f(x + k1 / 2), ..."""
        slopes = [self._network(field, context)]
        for factor in (0.5, 0.5, 1.0):
            stage = field.like(field.data + slopes[-1].data * factor)
            slopes.append(self._network(stage, context))
        k1, k2, k3, k4 = (slope.data for slope in slopes)
        return field.like((k1 + 2 * k2 + 2 * k3 + k4) / 6)
