"""One encoder stage of the CrossFormer family."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from flax import nnx

from credit_jax.models.crossformer.attention import QKVProjection, QueryKeyValue
from credit_jax.models.crossformer.blocks import (
    DENSE,
    CrossEmbed,
    FeedForwards,
    TransformerBlock,
)
from credit_jax.nn.context import Context
from credit_jax.nn.parameters import stack_blocks
from credit_jax.nn.run_blocks import run_block, scan_blocks
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.scopes import BLOCKS


class CrossFormerStage(nnx.Module):
    """Embedding and `depth` transformer blocks, run by `scan_blocks`.

    Args of the constructor:
        channel_in, channels: numbers of channels of the input and of the stage.
        depth: number of transformer blocks.
        kernel_sizes, stride, symmetric: of the embedding, see `CrossEmbed`.
        local_window, global_window: tokens along each side of a window.
        dim_head: number of channels of an attention head.
        attn_dropout, ff_dropout: dropout rates of attention weights and hidden units.
        query_key_value: class of the projection, see `WindowAttention`.
        feed_forwards: constructors of layers, see `TransformerBlock`.
    """

    def __init__(
        self,
        channel_in: int,
        channels: int,
        *,
        depth: int,
        kernel_sizes: Sequence[int],
        stride: int,
        local_window: int,
        global_window: int,
        dim_head: int,
        symmetric: bool = False,
        attn_dropout: float = 0.0,
        ff_dropout: float = 0.0,
        query_key_value: QKVProjection = QueryKeyValue,
        feed_forwards: FeedForwards = DENSE,
    ) -> None:
        self.depth = depth
        # Without attention, the output of the embedding is not in windows.
        self.windows = (local_window, global_window) if depth else (1, 1)

        def block() -> TransformerBlock:
            return TransformerBlock(
                channels,
                local_window,
                global_window,
                dim_head=dim_head,
                attn_dropout=attn_dropout,
                ff_dropout=ff_dropout,
                query_key_value=query_key_value,
                feed_forwards=feed_forwards,
            )

        self.embed = CrossEmbed(
            channel_in, channels, kernel_sizes, stride, symmetric=symmetric
        )
        if depth:
            self.blocks = stack_blocks(block, depth)

    def __call__(self, field: Field, context: Context) -> Field:
        field = run_block(context, self.embed, field, windows=self.windows)
        if not self.depth:
            return field
        with jax.named_scope(BLOCKS):
            return scan_blocks(context, self.blocks, field, self.depth)
