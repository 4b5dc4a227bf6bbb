"""Keys of `unet` and `unet_downscaling`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    PositiveInt,
    model_validator,
)

from credit_jax.config import StrictModel, not_available
from credit_jax.config.base import Unavailable
from credit_jax.models.common.config import (
    ChannelCountKeys,
    CorrectedConfig,
    VariableKeys,
    ignored_by,
)
from credit_jax.models.common.resampling import mean_problems, unseen_frames
from credit_jax.models.unet.resnet import RESNETS, ResNetSizes

# Gates have channels // 16 hidden units.
DecoderChannels = Annotated[int, Field(ge=16)]

InterpolationMode = Literal["nearest", "nearest-exact", "area", "bilinear"]
Activation = Literal["identity", "sigmoid", "tanh"]

# Kinds of normalization of segmentation_models_pytorch that are an error here.
_OTHER_NORMS = {
    "layernorm": "in CREDIT it normalizes columns by weights of channels and fails",
    "inplace": "it is batchnorm that saves memory in PyTorch; set batchnorm",
}


def _unet(name: Any) -> Any:
    if name != "unet":
        raise ValueError(str(not_available("architecture", name, ["unet"])))
    return name


def _resnet(name: Any) -> Any:
    if name not in RESNETS:
        raise ValueError(str(not_available("encoder", name, RESNETS)))
    return name


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

    name: Annotated[str, BeforeValidator(_unet)]
    encoder_name: Annotated[str, BeforeValidator(_resnet)] = "resnet34"
    encoder_depth: int = Field(5, ge=3, le=5)
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

    @property
    def sizes(self) -> ResNetSizes:
        """Sizes of the encoder."""
        return RESNETS[self.encoder_name]

    @property
    def decoder_norm(self) -> DecoderNorm:
        """The normalization of the decoder."""
        return self.decoder_use_batchnorm or self.decoder_use_norm

    @model_validator(mode="after")
    def _fits(self) -> ArchitectureConfig:
        channels = list(self.decoder_channels)
        if len(channels) != self.encoder_depth:
            raise ValueError(
                f"decoder_channels has {len(channels)} entries; expected encoder_depth "
                f"{self.encoder_depth}"
            )
        return self


class UNetKeys(CorrectedConfig):
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
    ignored: ClassVar[Mapping[str, str]] = ignored_by(
        "unet",
        "padding_conf use_spectral_norm interp",
        output_frames=": the output has one frame",
    )
    output_frames: ClassVar[int] = 1

    image_height: PositiveInt = 640
    image_width: PositiveInt = 1280
    frames: PositiveInt = 2
    rk4_integration: bool = False
    architecture: ArchitectureConfig

    def without_effect(self) -> dict[str, str]:
        """Returns keys without effect; see `StrictModel.without_effect`."""
        return super().without_effect() | unseen_frames(self.frames)

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`."""
        yield from super().problems()
        yield from mean_problems(self.frames)
        channels = self.x.channels, self.output.channels
        if self.rk4_integration and channels[0] != channels[1]:
            yield (
                "model.rk4_integration adds the output to the input, but there are "
                f"{channels[0]} input and {channels[1]} output channels: "
                f"{self.channel_sum('input')}; {self.channel_sum('output')}"
            )


class UNetConfig(VariableKeys, UNetKeys):
    """Constructor keys of CREDIT's SegmentationModel, with its defaults."""

    type: Literal["unet"] = "unet"
    levels: int = 16


class DownscalingUNetConfig(ChannelCountKeys, UNetKeys):
    """Constructor keys of CREDIT's DownscalingSegmentationModel, with its defaults."""

    type: Literal["unet_downscaling"] = "unet_downscaling"
