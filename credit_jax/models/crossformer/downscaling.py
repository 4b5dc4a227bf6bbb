"""CREDIT's `crossformer_downscaling` (models/wxformer/crossformer_downscaling.py).

A `crossformer` with a decoder of transposed convolutions, on a regional grid. Channels
are boundary conditions, prognostic and diagnostic variables. The mean of two frames
enters the encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from credit_jax.models.common.entry import FrameFold
from credit_jax.models.common.upsampling import ResidualUpBlock, UpsampleHead
from credit_jax.models.common.variables import ChannelCountKeys
from credit_jax.models.crossformer.config import EncoderDecoderConfig
from credit_jax.models.crossformer.encoder_decoder import EncoderDecoder


class DownscalingCrossFormerConfig(ChannelCountKeys, EncoderDecoderConfig):
    """Constructor keys of CREDIT's DownscalingCrossFormer, with its defaults.

    Differs from CREDIT: patches may be padded, and dims need not double.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        **EncoderDecoderConfig.small_keys,
        "cross_embed_strides": [2, 2, 2, 2],
    }
    small_is_padded: ClassVar[bool] = False

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

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """See `EncoderDecoderConfig.problems`."""
        return [*self.kernel_problems(), *super().problems(tensor, domain)]


class DownscalingCrossFormer(EncoderDecoder):
    """The downscaling model; see `DownscalingCrossFormerConfig` for its keys."""

    def __init__(self, config: DownscalingCrossFormerConfig) -> None:
        super().__init__(config, ResidualUpBlock, UpsampleHead)
