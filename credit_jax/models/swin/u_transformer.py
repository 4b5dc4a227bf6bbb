"""FuXi's U-Transformer: downsampling, Swin Transformer V2 blocks, upsampling."""

from __future__ import annotations

from dataclasses import dataclass

import jax
from flax import nnx

from credit_jax.models.common.upsampling import ResidualUpBlock
from credit_jax.models.swin.attention import BiasedQueryKeyValue, ShiftedWindowAttention
from credit_jax.models.swin.blocks import PLAIN, SHIFTED, Mlp, SwinBlock
from credit_jax.models.swin.position_bias import OffsetBias
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Conv, GroupNorm
from credit_jax.nn.parameters import stack_blocks
from credit_jax.nn.run_blocks import run_block, scan_blocks
from credit_jax.ops.padding import IntPair
from credit_jax.parallel.domain.padding import crop_globe
from credit_jax.parallel.domain.rearrange import (
    add,
    dim_size,
    join,
    lat_lon_dims,
    select,
)
from credit_jax.parallel.domain.windows import window_layout
from credit_jax.parallel.rows.layout import PADDING, Field
from credit_jax.parallel.scopes import BLOCKS, DECODER, EMBEDDING

# Hidden units of the feed-forward layers divided by channels.
EXPANSION = 4


@dataclass(frozen=True)
class UTransformerSizes:
    """Sizes of a U-Transformer.

    Attributes:
        channels: number of channels of all fields.
        num_groups: number of groups of the norms of down- and upsampling.
        heads: number of heads.
        window: tokens along each side of a window.
        depth: number of blocks.
        tokens: rows and columns of tokens, before padding to complete windows.
        trained_qkv: whether the matrices of queries, keys and values are trained.
        divided_qkv: whether spectral norm divides them.
        proj_drop, attn_drop, drop_path: dropout rates of projections, of attention
            weights, and of branches.
    """

    channels: int
    num_groups: IntPair
    heads: int
    window: int
    depth: int
    tokens: IntPair
    trained_qkv: bool = False
    divided_qkv: bool = False
    proj_drop: float = 0.0
    attn_drop: float = 0.0
    drop_path: float = 0.0

    @property
    def pads(self) -> tuple[IntPair, IntPair]:
        """Zeros (low, high) of rows and of columns that complete the windows."""
        missing = [-size % self.window for size in self.tokens]
        rows, columns = ((m // 2, m - m // 2) for m in missing)
        return rows, columns

    @property
    def padded(self) -> IntPair:
        """Rows and columns of tokens, padded to complete windows."""
        rows, columns = self.tokens
        lat, lon = self.pads
        return rows + sum(lat), columns + sum(lon)

    @property
    def shift(self) -> IntPair:
        """Shift (rows, columns) of every other block; 0 along a dim of one window."""
        rows, columns = (
            0 if size == self.window else self.window // 2 for size in self.padded
        )
        return rows, columns


class ResidualDownBlock(nnx.Module):
    """Halves the grid, rounded up, then two residual layers of convolution and norm."""

    def __init__(self, channels: int, num_groups: int) -> None:
        self.conv = Conv(channels, channels, 3, stride=2, padding=1)
        self.residual_conv_0 = Conv(channels, channels, 3, padding=1)
        self.residual_norm_0 = GroupNorm(num_groups, channels)
        self.residual_conv_1 = Conv(channels, channels, 3, padding=1)
        self.residual_norm_1 = GroupNorm(num_groups, channels)

    @jax.named_scope(EMBEDDING)
    def __call__(self, field: Field, context: Context) -> Field:
        field = self.conv(field)
        x = self.residual_norm_0(self.residual_conv_0(field))
        x = x.like(jax.nn.silu(x.data))
        x = self.residual_norm_1(self.residual_conv_1(x))
        return add(field, x.like(jax.nn.silu(x.data)))


class UTransformer(nnx.Module):
    """CREDIT's UTransformer; see `UTransformerSizes`."""

    def __init__(self, sizes: UTransformerSizes) -> None:
        self.sizes = sizes
        channels = sizes.channels
        self.down = ResidualDownBlock(channels, sizes.num_groups[0])
        if sizes.depth:
            self.blocks = stack_blocks(lambda: _block(sizes), sizes.depth)
        self.up = ResidualUpBlock(2 * channels, channels, sizes.num_groups[1])

    def __call__(self, field: Field, context: Context) -> Field:
        skip = run_block(context, self.down, field)
        field = self._attend(skip, context)
        return run_block(context, self.up, join(skip, field))

    def _attend(self, skip: Field, context: Context) -> Field:
        sizes = self.sizes
        lat, lon = sizes.pads
        field = _pad_zeros(skip, sizes)
        if sizes.depth:
            with jax.named_scope(BLOCKS):
                field = scan_blocks(
                    context, self.blocks, field, sizes.depth, variants=(PLAIN, SHIFTED)
                )
        with jax.named_scope(DECODER):
            return crop_globe(field, lat=lat, lon=lon, out=skip.layout)


def _block(sizes: UTransformerSizes) -> SwinBlock:
    channels, heads, window = sizes.channels, sizes.heads, (sizes.window, sizes.window)
    attention = ShiftedWindowAttention(
        channels,
        heads,
        window,
        qkv=BiasedQueryKeyValue(
            channels,
            heads,
            key_bias=False,
            trained=sizes.trained_qkv,
            divided=sizes.divided_qkv,
        ),
        bias=OffsetBias(heads, window),
        attn_drop=sizes.attn_drop,
        proj_drop=sizes.proj_drop,
    )
    feed_forward = Mlp(channels, EXPANSION * channels, dropout=sizes.proj_drop)
    return SwinBlock(
        attention, feed_forward, channels, sizes.shift, drop_path=sizes.drop_path
    )


@jax.named_scope(EMBEDDING)
def _pad_zeros(field: Field, sizes: UTransformerSizes) -> Field:
    """Pads tokens with zeros to complete windows, on the layout of windows."""
    out = window_layout(field.layout, sizes.padded[0], sizes.window)
    for dim, (low, high) in zip(lat_lon_dims(field), sizes.pads, strict=True):
        index = [PADDING] * low + [*range(dim_size(field, dim))] + [PADDING] * high
        field = select(field, dim, index, out=out)
    return field
