"""CREDIT's `camulator` (models/camulator.py), a climate emulator.

The encoder of the CrossFormer family with a decoder of pixel-shuffle blocks, whose
sharpening has no spectral norm. The mean of two frames enters the encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from credit_jax.models.common.entry import FrameFold
from credit_jax.models.common.pixel_shuffle import PixelShuffleBlock, PixelShuffleHead
from credit_jax.models.common.variables import VariableKeys
from credit_jax.models.crossformer.config import EncoderDecoderConfig
from credit_jax.models.crossformer.encoder_decoder import EncoderDecoder


class CamulatorConfig(VariableKeys, EncoderDecoderConfig):
    """Constructor keys of CREDIT's Camulator, with its defaults.

    Differs from CREDIT: patches may be padded, and dims need not double.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        **EncoderDecoderConfig.small_keys,
        "cross_embed_strides": [2, 2, 2, 2],
    }

    ignored: ClassVar[Mapping[str, str]] = {
        "output_frames": "CREDIT's camulator ignores it: the output has one frame",
        "frame_patch_size": "CREDIT's camulator ignores it",
        "upsample_v_conv": "CREDIT's camulator ignores it",
        "upsample_with_ps": "the decoder is always the pixel-shuffle one",
        "attention_type": "CREDIT's camulator ignores it",
        "decoder_attention_type": "CREDIT's camulator ignores it",
        "diffusion": "CREDIT's camulator ignores it",
        "pad_lat": "CREDIT's camulator ignores it; use padding_conf",
        "pad_lon": "CREDIT's camulator ignores it; use padding_conf",
    }
    symmetric_embedding: ClassVar[bool] = True
    frame_fold: ClassVar[FrameFold] = "mean"
    output_frames: ClassVar[int] = 1

    type: Literal["camulator"] = "camulator"

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """See `EncoderDecoderConfig.problems`."""
        return [*self.kernel_problems(), *super().problems(tensor, domain)]


class Camulator(EncoderDecoder):
    """The Camulator model; see `CamulatorConfig` for its keys."""

    def __init__(self, config: CamulatorConfig) -> None:
        up = partial(PixelShuffleBlock, smooth=False, sharp_spectral_norm=False)
        super().__init__(config, up, partial(PixelShuffleHead, smooth=False))
