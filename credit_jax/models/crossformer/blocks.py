"""Blocks of the CrossFormer family: cross-scale embedding and transformer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.models.crossformer.attention import (
    QKVProjection,
    QueryKeyValue,
    WindowAttention,
)
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Conv, FeedForward
from credit_jax.ops.padding import IntPair, conv_out_size
from credit_jax.parallel.domain.conv import conv2d_scales, scale_padding
from credit_jax.parallel.domain.heads import attention_layouts
from credit_jax.parallel.domain.strips import Windows
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.rows.reshard import WINDOWS, reshard
from credit_jax.parallel.scopes import EMBEDDING

# Biases of short and of long attention; None for windows of one token.
Biases = tuple[Float[Array, "short short"] | None, Float[Array, "long long"] | None]
# Constructors of the feed-forward layers of a block, see `TransformerBlock`.
FeedForwards = tuple[Callable[..., Any], Callable[..., Any]]
DENSE: FeedForwards = (FeedForward, FeedForward)


class CrossEmbed(nnx.Module):
    """Convolutions of several kernel sizes and one stride, concatenated.

    Padding is that of `parallel.domain.conv.scale_padding`. Kernel i of ascending
    sizes (from 0) has channel_out // 2**(i + 1) output channels, the largest has the
    remaining ones.

    Args of the constructor:
        channel_in, channel_out: numbers of channels.
        kernel_sizes: sizes of the square kernels, in any order.
        stride: of both dims.
        symmetric: see `scale_padding`.
    """

    def __init__(
        self,
        channel_in: int,
        channel_out: int,
        kernel_sizes: Sequence[int],
        stride: int,
        *,
        symmetric: bool = False,
    ) -> None:
        sizes = sorted(kernel_sizes)
        widths = [channel_out // 2**i for i in range(1, len(sizes))]
        widths.append(channel_out - sum(widths))
        self.stride = stride
        self.symmetric = symmetric
        self.convs = nnx.List(
            Conv(channel_in, width, size, stride=stride)
            for size, width in zip(sizes, widths, strict=True)
        )

    @jax.named_scope(EMBEDDING)
    def __call__(self, field: Field, context: Context, *, windows: IntPair) -> Field:
        """Embeds a field.

        Args:
            field: (batch, lat, lon, channel).
            context: context of the forward pass.
            windows: tokens along each side of the short and of the long windows of
                the following attention.

        Returns:
            Field on the layout of short windows.
        """
        kernels = [conv.kernel[...] for conv in self.convs]
        size = kernels[-1].shape[0]
        pad = scale_padding(size, self.stride, symmetric=self.symmetric)
        rows, columns = (
            conv_out_size(points, size, self.stride, pad)
            for points in (field.layout.size, field.row_points)
        )
        grid, degree = Windows(rows, columns, *windows), context.axes.ulysses
        short, _ = attention_layouts(field.layout, grid, degree)
        embedded = conv2d_scales(
            field,
            kernels,
            [conv.bias[...] for conv in self.convs],
            stride=self.stride,
            out=short if short.strips == 1 else short.to_blocks(),
            symmetric=self.symmetric,
        )
        return reshard(embedded, short, scope=WINDOWS)


class TransformerBlock(nnx.Module):
    """Short attention, feed-forward, long attention, feed-forward, each with residual.

    Input and output have the layout of short windows. Long attention and the layer
    after it use the layout of long windows, so a block reshards twice.

    Args of the constructor:
        channels: number of channels of the field.
        local_window, global_window: tokens along each side of a window.
        dim_head, query_key_value: see `WindowAttention`.
        attn_dropout, ff_dropout: dropout rates of attention weights and hidden units.
        feed_forwards: constructors (channels, dropout=rate) -> layer of the layers
            after short and after long attention.
    """

    ready_of = ("position_bias",)

    def __init__(
        self,
        channels: int,
        local_window: int,
        global_window: int,
        *,
        dim_head: int,
        attn_dropout: float = 0.0,
        ff_dropout: float = 0.0,
        query_key_value: QKVProjection = QueryKeyValue,
        feed_forwards: FeedForwards = DENSE,
    ) -> None:
        attention: dict[str, Any] = {
            "dim_head": dim_head,
            "dropout": attn_dropout,
            "query_key_value": query_key_value,
        }
        self.short_attention = WindowAttention(
            channels, "short", local_window, **attention
        )
        after_short, after_long = feed_forwards
        self.short_feed_forward = after_short(channels, dropout=ff_dropout)
        self.long_attention = WindowAttention(
            channels, "long", global_window, **attention
        )
        self.long_feed_forward = after_long(channels, dropout=ff_dropout)

    def ready(self) -> Biases:
        """Returns the biases; `scan_blocks` computes those of all blocks at once."""
        return self.short_attention.bias(), self.long_attention.bias()

    def __call__(
        self, field: Field, context: Context, ready: Biases = (None, None)
    ) -> Field:
        """Runs the block.

        Args:
            field: (batch, lat, lon, channel).
            context: context of the forward pass.
            ready: as returned by `ready()`; a bias that is None is computed.
        """
        layout = field.layout
        sides = self.short_attention.window, self.long_attention.window
        windows = Windows(layout.size, field.row_points, *sides)
        short, long = attention_layouts(layout, windows, context.axes.ulysses)
        field = reshard(field, short, scope=WINDOWS)
        field = self.short_attention(field, context.fold_in(0), ready[0])
        field = self.short_feed_forward(field, context.fold_in(1))
        field = reshard(field, long, scope=WINDOWS)
        field = self.long_attention(field, context.fold_in(2), ready[1])
        field = self.long_feed_forward(field, context.fold_in(3))
        return reshard(field, layout, scope=WINDOWS)
