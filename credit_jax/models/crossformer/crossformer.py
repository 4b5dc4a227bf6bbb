"""CREDIT's older `crossformer` (models/crossformer.py), the released WXFormer weights.

The encoder of the CrossFormer family with a decoder of transposed convolutions, or of
interpolation and convolution, and optional attention over channels and points.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from credit_jax.models.crossformer.crossformer_config import CrossFormerConfig
from credit_jax.models.crossformer.encoder_decoder import EncoderDecoder
from credit_jax.models.crossformer.upsampling import (
    CoordinateUpBlock,
    ResidualUpBlock,
    UpsampleHead,
)
from credit_jax.nn.context import Context
from credit_jax.parallel.rows.layout import Field


class CrossFormer(EncoderDecoder):
    """The whole model; see `CrossFormerConfig` for its keys."""

    def __init__(self, config: CrossFormerConfig) -> None:
        make_up: Any = partial(ResidualUpBlock, attention=config.attention_type)
        if config.attention_type == "coordinate":
            make_up = CoordinateUpBlock
        interpolate = config.upsample_v_conv
        super().__init__(
            config,
            partial(make_up, interpolate=interpolate),
            partial(UpsampleHead, interpolate=interpolate),
        )

    def _up(self, block: Any, field: Field, context: Context, index: int) -> Field:
        """Run one block of the decoder, with the statistics of its batch norm."""
        if not isinstance(block, CoordinateUpBlock):
            return context.run(block, field)
        assert context.batch_stats is not None, "ModelDef.apply asks for them"
        path = f"up_blocks/{index}/{block.norm}"
        field, after = context.run(block, field, context.batch_stats[path])
        context.batch_stats[path] = after
        return field
