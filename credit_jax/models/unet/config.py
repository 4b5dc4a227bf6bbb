"""Keys of `unet` and `unet_downscaling`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PositiveInt

from credit_jax.config.base import StrictModel, Unavailable, not_available
from credit_jax.models.common.frames import mean_problems, unseen_frames
from credit_jax.models.common.padded_config import CorrectedConfig
from credit_jax.models.common.variables import (
    ChannelCountKeys,
    ChannelKeys,
    VariableKeys,
)
from credit_jax.models.unet.resnet import RESNETS, ResNetSizes

# Minimum number of decoder channels: gates have channels // 16 hidden units.
LEAST_CHANNELS = 16


def _unet(name: Any) -> Any:
    if name != "unet":
        raise ValueError(str(not_available("architecture", name, ["unet"])))
    return name


def _resnet(name: Any) -> Any:
    if name not in RESNETS:
        raise ValueError(str(not_available("encoder", name, RESNETS)))
    return name


def _batch_norm(value: Any) -> Any:
    return "batchnorm" if value is True else value


class ArchitectureConfig(StrictModel):
    """Arguments of segmentation_models_pytorch's Unet, with its defaults.

    Attributes:
        name: "unet"; CREDIT's other networks are not available.
        encoder_name: name of a ResNet or ResNeXt, one of `RESNETS`.
        encoder_depth: number of times that the encoder halves the grid.
        encoder_weights: name of pretrained weights, which are not read, see
            `without_effect`.
        decoder_use_norm: "batchnorm", or True.
        decoder_channels: number of channels of each of the `encoder_depth` blocks of
            the decoder.
        decoder_interpolation: interpolation by which the decoder doubles the grid.
    """

    ignored: ClassVar[Mapping[str, str]] = {
        "in_channels": "CREDIT replaces it by the channels of the data",
        "classes": "CREDIT replaces it by the channels of the data",
        "decoder_attention_type": "CREDIT replaces it by scse",
    }
    unavailable: ClassVar[Mapping[str, Unavailable]] = {
        "activation": Unavailable(
            "the output has no activation; remove the key", harmless=("identity",)
        ),
        "decoder_use_batchnorm": Unavailable(
            "the former name of decoder_use_norm; set decoder_use_norm: batchnorm",
            harmless=(True,),
        ),
        "aux_params": Unavailable("there is no second head; remove the key"),
    }

    name: Annotated[str, BeforeValidator(_unet)]
    encoder_name: Annotated[str, BeforeValidator(_resnet)] = "resnet34"
    encoder_depth: int = Field(5, ge=3, le=5)
    encoder_weights: str | None = "imagenet"
    decoder_use_norm: Annotated[Literal["batchnorm"], BeforeValidator(_batch_norm)] = (
        "batchnorm"
    )
    decoder_channels: tuple[PositiveInt, ...] = (256, 128, 64, 32, 16)
    decoder_interpolation: Literal["nearest", "bilinear"] = "nearest"

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

    def problems(self) -> list[str]:
        """Returns errors of the decoder's channels, one line each."""
        where = "model.architecture.decoder_channels"
        channels = list(self.decoder_channels)
        if len(channels) != self.encoder_depth:
            return [
                f"{where} has {len(channels)} entries; expected encoder_depth "
                f"{self.encoder_depth}"
            ]
        if min(channels) < LEAST_CHANNELS:
            return [
                f"{where} is {channels}; expected at least {LEAST_CHANNELS} each, of "
                f"which gates have {LEAST_CHANNELS} times fewer"
            ]
        return []


class UNetKeys(CorrectedConfig, ChannelKeys):
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

    passes_over: ClassVar[bool] = True
    ignored: ClassVar[Mapping[str, str]] = {
        "output_frames": "the output has one frame",
        "padding_conf": "CREDIT's unet ignores it",
        "use_spectral_norm": "CREDIT's unet ignores it",
        "interp": "CREDIT's unet ignores it",
    }
    output_frames: ClassVar[int] = 1

    image_height: PositiveInt = 640
    image_width: PositiveInt = 1280
    frames: PositiveInt = 2
    rk4_integration: bool = False
    architecture: ArchitectureConfig

    def without_effect(self) -> dict[str, str]:
        """Returns keys without effect; see `StrictModel.without_effect`."""
        return super().without_effect() | unseen_frames(self.frames)

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """See `ModelConfig.problems`; any tp and domain degree is valid."""
        del tensor, domain
        found = [
            *self.architecture.problems(),
            *mean_problems(self.frames),
            *self.channel_problems(),
            *self.post_problems(),
        ]
        channels = self.input_channels, self.output_channels
        if self.rk4_integration and channels[0] != channels[1]:
            found.append(
                "model.rk4_integration adds the output to the input, but there are "
                f"{channels[0]} input and {channels[1]} output channels: "
                f"{self.channel_sum('input')}; {self.channel_sum('output')}"
            )
        return found


class UNetConfig(VariableKeys, UNetKeys):
    """Constructor keys of CREDIT's SegmentationModel, with its defaults."""

    type: Literal["unet"] = "unet"
    levels: int = 16


class DownscalingUNetConfig(ChannelCountKeys, UNetKeys):
    """Constructor keys of CREDIT's DownscalingSegmentationModel, with its defaults."""

    type: Literal["unet_downscaling"] = "unet_downscaling"
