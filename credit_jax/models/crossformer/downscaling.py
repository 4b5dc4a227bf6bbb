"""CREDIT's `crossformer_downscaling` (models/wxformer/crossformer_downscaling.py).

A `crossformer` with a decoder of transposed convolutions, on a regional grid: channels
are boundary conditions, prognostic and diagnostic ones. Two frames enter as their mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import NonNegativeInt

from credit_jax.config.base import StrictModel
from credit_jax.models.common.frames import FrameFold
from credit_jax.models.common.upsampling import ResidualUpBlock, UpsampleHead
from credit_jax.models.crossformer import checks
from credit_jax.models.crossformer.config import EncoderDecoderConfig
from credit_jax.models.crossformer.encoder_decoder import EncoderDecoder


class ChannelCounts(StrictModel):
    """`channels`, which CREDIT counts from its `data.datasets`.

    Attributes:
        boundary: channels of the input only.
        prognostic: of input and output.
        diagnostic: of the output only.
    """

    boundary: NonNegativeInt
    prognostic: NonNegativeInt
    diagnostic: NonNegativeInt


class DownscalingCrossFormerConfig(EncoderDecoderConfig):
    """Constructor keys of CREDIT's DownscalingCrossFormer, with its defaults.

    Differs from CREDIT: patches may be padded, and dims need not double.

    Attributes:
        channels: of one frame, by kind.
    """

    ignored: ClassVar[Mapping[str, str]] = {
        key: f"CREDIT's crossformer_downscaling ignores it{more}"
        for key, more in {
            "output_frames": ": the output has one frame",
            "levels": "; see channels",
            "surface_channels": "; see channels",
            "input_only_channels": "; see channels",
            "output_only_channels": "; see channels",
            "frame_patch_size": "",
            "upsample_v_conv": ": the decoder has transposed convolutions",
            "upsample_with_ps": ": the decoder has transposed convolutions",
            "attention_type": "",
            "decoder_attention_type": "",
            "diffusion": "",
            "pad_lat": "; use padding_conf",
            "pad_lon": "; use padding_conf",
        }.items()
    }
    symmetric_embedding: ClassVar[bool] = True
    frame_fold: ClassVar[FrameFold] = "mean"
    output_frames: ClassVar[int] = 1

    type: Literal["crossformer_downscaling"] = "crossformer_downscaling"
    channels: ChannelCounts

    @property
    def input_channels(self) -> int:
        """Channels of one input frame."""
        return self.channels.boundary + self.channels.prognostic

    @property
    def output_channels(self) -> int:
        """Channels of the output."""
        return self.channels.prognostic + self.channels.diagnostic

    def channel_sum(self, direction: str) -> str:
        """The arithmetic of `input_channels` or `output_channels`, for errors.

        Args:
            direction: "input" or "output".
        """
        only = {"input": "boundary", "output": "diagnostic"}[direction]
        return (
            f"channels.prognostic {self.channels.prognostic} + channels.{only} "
            f"{getattr(self.channels, only)}"
        )

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """See `EncoderDecoderConfig.problems`."""
        return [*checks.kernel_problems(self), *super().problems(tensor, domain)]


class DownscalingCrossFormer(EncoderDecoder):
    """The whole model; see `DownscalingCrossFormerConfig` for its keys."""

    def __init__(self, config: DownscalingCrossFormerConfig) -> None:
        super().__init__(config, ResidualUpBlock, UpsampleHead)
