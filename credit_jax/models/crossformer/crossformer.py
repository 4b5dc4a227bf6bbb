"""CREDIT's older `crossformer` (models/crossformer.py), the released WXFormer weights.

The encoder of the CrossFormer family with a decoder of transposed convolutions, or of
interpolation and convolution, and optional attention over channels and points.
"""

from __future__ import annotations

from functools import partial

from credit_jax.models.crossformer.crossformer_config import CrossFormerConfig
from credit_jax.models.crossformer.encoder_decoder import EncoderDecoder
from credit_jax.models.crossformer.upsampling import ResidualUpBlock, UpsampleHead


class CrossFormer(EncoderDecoder):
    """The whole model; see `CrossFormerConfig` for its keys."""

    def __init__(self, config: CrossFormerConfig) -> None:
        interpolate, attention = config.upsample_v_conv, config.attention_type
        super().__init__(
            config,
            partial(ResidualUpBlock, interpolate=interpolate, attention=attention),
            partial(UpsampleHead, interpolate=interpolate),
        )
