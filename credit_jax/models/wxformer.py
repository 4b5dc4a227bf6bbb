"""WXFormer: CREDIT's `wxformer` and `wxformer_base` (models/wxformer/crossformer.py).

The encoder of the CrossFormer family with a decoder of pixel-shuffle blocks.
"""

from __future__ import annotations

from credit_jax.models.encoder_decoder import EncoderDecoder
from credit_jax.models.wxformer_config import WXFormerConfig
from credit_jax.nn.blocks import Head, UpBlock


class WXFormer(EncoderDecoder):
    """The whole model; see `WXFormerConfig` for its keys."""

    def __init__(self, config: WXFormerConfig) -> None:
        super().__init__(config, UpBlock, Head)
