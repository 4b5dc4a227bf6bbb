"""CREDIT's older `crossformer` (models/crossformer.py), the released WXFormer weights.

The encoder of the CrossFormer family with a decoder of transposed convolutions, or of
interpolation and convolution, and optional attention over channels and points.
"""

from __future__ import annotations

from functools import partial

from credit_jax.models.crossformer_config import CrossFormerConfig
from credit_jax.models.encoder_decoder import EncoderDecoder
from credit_jax.nn.upsampling import ResidualUpBlock, UpsampleHead


class CrossFormer(EncoderDecoder):
    """The whole model; see `CrossFormerConfig` for its keys."""

    def __init__(self, config: CrossFormerConfig) -> None:
        make_up = partial(
            ResidualUpBlock,
            interpolate=config.upsample_v_conv,
            attention=config.attention_type,
        )
        make_head = partial(UpsampleHead, interpolate=config.upsample_v_conv)
        super().__init__(config, make_up, make_head)
