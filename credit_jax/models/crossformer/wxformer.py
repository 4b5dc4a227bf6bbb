"""WXFormer: CREDIT's `wxformer` and `wxformer_base` (models/wxformer/crossformer.py).

The encoder of the CrossFormer family with a decoder of pixel-shuffle blocks.
"""

from __future__ import annotations

from credit_jax.models.crossformer.blocks import Head, UpBlock
from credit_jax.models.crossformer.encoder_decoder import EncoderDecoder
from credit_jax.models.crossformer.wxformer_config import WXFormerConfig


class WXFormer(EncoderDecoder):
    """The whole model; see `WXFormerConfig` for its keys."""

    def __init__(self, config: WXFormerConfig) -> None:
        super().__init__(config, UpBlock, Head)
