"""CREDIT's `unet` and `unet_downscaling`: segmentation_models_pytorch's U-Net.

A ResNet encoder, a decoder with gates of channels and points, and a convolution. The
mean of two frames enters the encoder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array
from pydantic import BeforeValidator, NonNegativeFloat, PositiveInt, model_validator
from pydantic import Field as Key

from credit_jax.config import StrictModel, not_available
from credit_jax.config.base import Unavailable
from credit_jax.models.common import config as common
from credit_jax.models.common import resampling
from credit_jax.models.unet.resnet import RESNETS, ResNetEncoder, relu
from credit_jax.nn.context import Context
from credit_jax.nn.layers import BatchNorm, Conv, GroupNorm
from credit_jax.nn.parameters import parameter
from credit_jax.nn.run_blocks import run_block
from credit_jax.parallel.compiler import INPUT, OUTPUT
from credit_jax.parallel.domain.attention import scse
from credit_jax.parallel.domain.pool import resize_area, resize_bilinear, resize_nearest
from credit_jax.parallel.domain.rearrange import join
from credit_jax.parallel.params.spec import Initializer, constant, kaiming_uniform
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field
from credit_jax.state_dict.key_table import Rule, below, key_table
from credit_jax.state_dict.torch_model import TorchModel

# Gates have channels // 16 hidden units.
DecoderChannels = Annotated[int, Key(ge=16)]

InterpolationMode = Literal["nearest", "nearest-exact", "area", "bilinear"]
Activation = Literal["identity", "sigmoid", "tanh"]

# Kinds of normalization of segmentation_models_pytorch that are an error here.
_OTHER_NORMS = {
    "layernorm": "in CREDIT it normalizes columns by weights of channels and fails",
    "inplace": "it is batchnorm that saves memory in PyTorch; set batchnorm",
}


def _one_of(key: str, names: Collection[str]) -> Any:
    """Returns a validator of a key that takes only some of CREDIT's values."""

    def check(name: Any) -> Any:
        if name not in names:
            raise ValueError(str(not_available(key, name, names)))
        return name

    return BeforeValidator(check)


def _norm(value: Any) -> Any:
    """Converts the short forms of `decoder_use_norm` to a mapping."""
    if isinstance(value, bool):
        return {"type": "batchnorm" if value else "identity"}
    return {"type": value.lower()} if isinstance(value, str) else value


def _norm_type(value: Any) -> Any:
    if isinstance(value, str) and value in _OTHER_NORMS:
        raise ValueError(f"{value!r} is not available: {_OTHER_NORMS[value]}")
    return value


class DecoderNorm(StrictModel):
    """Normalization between the convolutions and activations of the decoder.

    Attributes:
        type: "batchnorm"; "instancenorm", of each sample and channel; or "identity",
            where the convolutions have biases instead.
        eps: number that is added to the variance.
        momentum: weight of a batch in the running statistics of a batch norm; None for
            their mean over all batches.
        affine: whether an instance norm has scales and biases; a batch norm has them.
    """

    unavailable: ClassVar[Mapping[str, Unavailable]] = {
        "track_running_stats": Unavailable(
            "only batchnorm has running statistics; remove the key"
        ),
    }

    type: Annotated[
        Literal["batchnorm", "instancenorm", "identity"], BeforeValidator(_norm_type)
    ] = "batchnorm"
    eps: NonNegativeFloat = 1e-5
    momentum: float | None = 0.1
    affine: bool | None = None

    @model_validator(mode="after")
    def _fits(self) -> DecoderNorm:
        if self.type == "batchnorm" and self.affine is False:
            raise ValueError(
                "affine is false: batchnorm without scales and biases is not "
                "available; remove the key"
            )
        return self


class ArchitectureConfig(StrictModel):
    """Arguments of segmentation_models_pytorch's Unet, with its defaults.

    Attributes:
        name: "unet"; CREDIT's other networks are not available.
        encoder_name: name of a ResNet or ResNeXt, one of `RESNETS`.
        encoder_depth: number of times that the encoder halves the grid.
        encoder_weights: name of pretrained weights, which are not read, see
            `without_effect`.
        decoder_use_norm: see `DecoderNorm`; a name of its `type`, True for batchnorm,
            False for identity, or a mapping of its keys.
        decoder_use_batchnorm: the former name of `decoder_use_norm`, which it replaces.
        decoder_channels: number of channels of each of the `encoder_depth` blocks of
            the decoder.
        decoder_interpolation: interpolation by which the decoder doubles the grid.
        activation: function of the output.
    """

    ignored: ClassVar[Mapping[str, str]] = {
        "in_channels": "CREDIT replaces it by the channels of the data",
        "classes": "CREDIT replaces it by the channels of the data",
        "decoder_attention_type": "CREDIT replaces it by scse",
    }
    unavailable: ClassVar[Mapping[str, Unavailable]] = {
        "aux_params": Unavailable("there is no second head; remove the key"),
    }

    name: Annotated[str, _one_of("architecture", ["unet"])]
    encoder_name: Annotated[str, _one_of("encoder", RESNETS)] = "resnet34"
    encoder_depth: int = Key(5, ge=3, le=5)
    encoder_weights: str | None = "imagenet"
    decoder_use_norm: Annotated[DecoderNorm, BeforeValidator(_norm)] = DecoderNorm()
    decoder_use_batchnorm: Annotated[DecoderNorm | None, BeforeValidator(_norm)] = None
    decoder_channels: tuple[DecoderChannels, ...] = (256, 128, 64, 32, 16)
    decoder_interpolation: InterpolationMode = "nearest"
    activation: Activation = "identity"

    def without_effect(self) -> dict[str, str]:
        """Returns a note on pretrained weights; see `StrictModel.without_effect`."""
        if self.encoder_weights is None:
            return {}
        return {
            "encoder_weights": f"{self.encoder_weights!r}: pretrained weights are not "
            "downloaded; training begins with random ones unless it goes on from a "
            "converted checkpoint of CREDIT"
        }

    @model_validator(mode="after")
    def _fits(self) -> ArchitectureConfig:
        channels = list(self.decoder_channels)
        if len(channels) != self.encoder_depth:
            raise ValueError(
                f"decoder_channels has {len(channels)} entries; expected encoder_depth "
                f"{self.encoder_depth}"
            )
        return self


class UNetKeys(common.CorrectedConfig):
    """Keys of `unet` and `unet_downscaling`, with CREDIT's defaults.

    Unknown keys are ignored with a warning, as CREDIT's model accepts any keys.

    Attributes:
        image_height, image_width: grid of input and output.
        frames: number of time steps of the input; the mean of the first two enters the
            network.
        rk4_integration: whether the output combines four evaluations of the network as
            the stages of a Runge-Kutta scheme.
        architecture: see `ArchitectureConfig`.
    """

    # Each level halves 32 x 64 points and doubles the channels. Batch norms of few
    # points magnify rounding: with 1 x 2 of them, at a fifth level, 1e-13 of the
    # weights becomes 3e-7 of the loss three updates later.
    small_keys: ClassVar[Mapping[str, Any]] = {
        "architecture": {
            "encoder_name": "resnet18",
            "encoder_weights": None,
            "encoder_depth": 3,
            "decoder_channels": [32, 32, 16],
        },
    }

    passes_over: ClassVar[bool] = True
    ignored: ClassVar[Mapping[str, str]] = common.ignored_by(
        "unet",
        "padding_conf use_spectral_norm interp",
        output_frames=": the output has one frame",
    )
    output_frames: ClassVar[int] = 1

    image_height: common.Side = 640
    image_width: common.Side = 1280
    frames: PositiveInt = 2
    rk4_integration: bool = False
    architecture: ArchitectureConfig

    def without_effect(self) -> dict[str, str]:
        """Returns keys without effect; see `StrictModel.without_effect`."""
        return super().without_effect() | resampling.unseen_frames(self.frames)

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`."""
        yield from super().problems()
        yield from resampling.mean_problems(self.frames)
        channels = self.x.channels, self.output.channels
        if self.rk4_integration and channels[0] != channels[1]:
            yield (
                "model.rk4_integration adds the output to the input, but there are "
                f"{channels[0]} input and {channels[1]} output channels: "
                f"{self.channel_sum('input')}; {self.channel_sum('output')}"
            )


class UNetConfig(common.VariableKeys, UNetKeys):
    """Constructor keys of CREDIT's SegmentationModel, with its defaults."""

    type: Literal["unet"] = "unet"
    levels: int = 16


class DownscalingUNetConfig(common.ChannelCountKeys, UNetKeys):
    """Constructor keys of CREDIT's DownscalingSegmentationModel, with its defaults."""

    type: Literal["unet_downscaling"] = "unet_downscaling"


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
        layers = (
            (self.squeeze[...], self.squeeze_bias[...]),
            (self.expand[...], self.expand_bias[...]),
            (self.points[...], self.points_bias[...]),
        )
        return scse(field, *layers)


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
        layer: BatchNorm | GroupNorm | None = None
        if norm.type == "batchnorm":
            layer = BatchNorm(channel_out, momentum=norm.momentum, epsilon=norm.eps)
        elif norm.type == "instancenorm":
            affine, sizes = bool(norm.affine), (channel_out, channel_out)
            layer = GroupNorm(*sizes, epsilon=norm.eps, affine=affine)
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
        norm = config.decoder_use_batchnorm or config.decoder_use_norm
        self.layers = nnx.List(
            ConvReLU(width, channel_out, norm) for width in (joined, channel_out)
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
        encoder = RESNETS[config.encoder_name].channels[: config.encoder_depth]
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
            # torch's xavier_uniform_
            kernel_init=Initializer(
                "uniform", math.sqrt(6.0 / (9 * channel_in + 9 * channel_out))
            ),
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


@common.register_model(UNetConfig, UNET)
@common.register_model(DownscalingUNetConfig, UNET)
class UNet(nnx.Module):
    """The U-Net model; see `UNetConfig` for its keys."""

    def __init__(self, config: UNetConfig | DownscalingUNetConfig) -> None:
        self.config = config
        architecture = config.architecture
        self.encoder = ResNetEncoder(
            config.input_channels, RESNETS[architecture.encoder_name]
        )
        self.decoder = UNetDecoder(architecture)
        self.head = SegmentationHead(
            architecture.decoder_channels[-1],
            config.output_channels,
            architecture.activation,
        )

    def __call__(
        self, inputs: Mapping[str, Array], context: Context
    ) -> common.Prediction:
        """Predicts from local samples and rows, in blocks over the domain axis."""
        x = inputs["x"]
        with jax.named_scope(INPUT):
            data = resampling.fold_frames(context.precision.cast(x), "mean")
        field = Field(data, context.rows(self.config.image_height))
        # Differs from CREDIT: in training, the statistics of batch norms are those of
        # the global batch, not of each data-parallel rank.
        slopes = [self._network(field, context)]
        if self.config.rk4_integration:
            # (k1 + 2 k2 + 2 k3 + k4) / 6; k1 = f(x), k2 = f(x + k1 / 2), ...
            for factor in (0.5, 0.5, 1.0):
                stage = field.like(field.data + slopes[-1].data * factor)
                slopes.append(self._network(stage, context))
            k1, k2, k3, k4 = (slope.data for slope in slopes)
            slopes[0] = field.like((k1 + 2 * k2 + 2 * k3 + k4) / 6)
        field = slopes[0]
        with jax.named_scope(OUTPUT):
            y = field.data.transpose(0, 3, 1, 2)[:, :, None].astype(x.dtype)
        return resampling.correct(self.config, x, y, context)

    def _network(self, field: Field, context: Context) -> Field:
        grid = field.layout.size, field.data.shape[2]
        fields = self.encoder(field, context, self.config.architecture.encoder_depth)
        decoded = self.decoder(fields, grid, context)
        return reshard(run_block(context, self.head, decoded), field.layout)
