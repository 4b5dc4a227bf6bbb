"""WXFormer: CREDIT's `wxformer` and `wxformer_base` (models/wxformer/crossformer.py).

The encoder of the CrossFormer family with a decoder of pixel-shuffle blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from credit_jax.models.common.pixel_shuffle import PixelShuffleBlock, PixelShuffleHead
from credit_jax.models.crossformer.config import EncoderConfig
from credit_jax.models.crossformer.encoder_decoder import EncoderDecoder


class WXFormerKeys(EncoderConfig):
    """Constructor keys of CREDIT's WXFormer, with its defaults."""

    ignored: ClassVar[Mapping[str, str]] = {
        "attention_type": "CREDIT accepts it and builds no attention from it",
        "upsample_with_ps": "the decoder is always the pixel-shuffle one",
        "frame_patch_size": "CREDIT's wxformer ignores it",
        "upsample_v_conv": "CREDIT's wxformer ignores it",
        "decoder_attention_type": "CREDIT's wxformer ignores it",
        "pad_lat": "CREDIT's wxformer ignores it; use padding_conf",
        "pad_lon": "CREDIT's wxformer ignores it; use padding_conf",
    }


class WXFormerConfig(WXFormerKeys):
    """The `model:` section of `wxformer`; see `WXFormerKeys`."""

    type: Literal["wxformer", "wxformer_base"] = "wxformer"


class WXFormer(EncoderDecoder):
    """The WXFormer model; see `WXFormerConfig` for its keys."""

    def __init__(self, config: WXFormerConfig) -> None:
        super().__init__(config, PixelShuffleBlock, PixelShuffleHead)
