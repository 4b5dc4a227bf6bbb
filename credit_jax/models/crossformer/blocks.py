"""Blocks of the CrossFormer family: embeddings, transformer, pixel-shuffle decoder."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from flax import nnx

from credit_jax.models.crossformer.attention import WindowAttention
from credit_jax.nn.context import Context
from credit_jax.nn.feed_forward import FeedForward
from credit_jax.nn.layers import Conv, GroupNorm, LayerNorm
from credit_jax.nn.parameters import parameter
from credit_jax.ops.affine import add_bias
from credit_jax.ops.conv import conv_out_size
from credit_jax.ops.padding import Pair
from credit_jax.parallel.domain.conv import (
    conv2d_field,
    conv2d_scales,
    scale_padding,
)
from credit_jax.parallel.domain.shuffle import add, pixel_shuffle_field
from credit_jax.parallel.domain.windows import window_layout
from credit_jax.parallel.params.initializers import (
    constant,
    icnr,
    torch_uniform,
    xavier_normal,
)
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.rows.reshard import WINDOWS, reshard


class CrossEmbed(nnx.Module):
    """Convolutions of several kernel sizes and one stride, joined along channels.

    Each kernel pads as `parallel.domain.conv.scale_padding` says; the i-th smallest
    makes channel_out / 2**(i + 1) channels and the largest the rest.
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

    def __call__(self, field: Field, context: Context, *, window: int) -> Field:
        """Embed; the output rows lie as short windows of `window` rows need them."""
        kernels = [conv.kernel[...] for conv in self.convs]
        size = kernels[-1].shape[0]
        pad = scale_padding(size, self.stride, symmetric=self.symmetric)
        rows = conv_out_size(field.layout.size, size, self.stride, pad)
        return conv2d_scales(
            field,
            kernels,
            [conv.bias[...] for conv in self.convs],
            stride=self.stride,
            out=window_layout(field.layout, rows, window),
            symmetric=self.symmetric,
        )


class TransformerBlock(nnx.Module):
    """Short attention, feed-forward, long attention, feed-forward, each with residual.

    The field comes and goes on the layout of short windows; long attention and what
    follows it run on the layout of long windows, so a block moves rows twice.
    """

    def __init__(
        self,
        channels: int,
        local_window: int,
        global_window: int,
        *,
        dim_head: int,
        attn_dropout: float = 0.0,
        ff_dropout: float = 0.0,
    ) -> None:
        attention = {"dim_head": dim_head, "dropout": attn_dropout}
        self.short_attention = WindowAttention(
            channels, "short", local_window, **attention
        )
        self.short_feed_forward = FeedForward(channels, dropout=ff_dropout)
        self.long_attention = WindowAttention(
            channels, "long", global_window, **attention
        )
        self.long_feed_forward = FeedForward(channels, dropout=ff_dropout)

    def __call__(self, field: Field, context: Context) -> Field:
        layout = field.layout
        layers = (
            self.short_attention,
            self.short_feed_forward,
            self.long_attention,
            self.long_feed_forward,
        )
        for index, layer in enumerate(layers):
            if isinstance(layer, WindowAttention):
                field = reshard(field, layer.layout(field.layout), scope=WINDOWS)
            field = field.like(field.data + layer(field, context.fold_in(index)).data)
        return reshard(field, layout, scope=WINDOWS)


class PatchEmbed(nnx.Module):
    """CREDIT's CubeEmbedding: convolution with stride = kernel = patch, LayerNorm.

    It spans all frames, which the NHWC layout folds into channels.
    """

    def __init__(
        self, channel_in: int, channel_out: int, frames: int, patch: Pair
    ) -> None:
        self.patch = patch
        self.proj = _PatchProjection(channel_in, channel_out, (frames, *patch))
        self.norm = LayerNorm(channel_out)

    def __call__(self, field: Field, context: Context) -> Field:
        field = self.proj(field, self.patch)
        return field.like(self.norm(field.data))


class _PatchProjection(nnx.Module):
    """Kernel (time, height, width, in, out); spectral norm leaves Conv3d alone."""

    def __init__(self, channel_in: int, channel_out: int, size: Sequence[int]) -> None:
        fan_in = channel_in * size[0] * size[1] * size[2]
        init = torch_uniform(fan_in)
        shape = (size[0], size[1], size[2], channel_in, channel_out)
        dims = (None, None, None, "conv_in", "conv_out")
        self.kernel = parameter(init, shape, dims)
        self.bias = parameter(init, (channel_out,), ("conv_out",))

    def __call__(self, field: Field, patch: Pair) -> Field:
        field = conv2d_field(field, self.kernel[...][0], stride=patch)
        return field.like(add_bias(field.data, self.bias[...]))


class UpBlock(nnx.Module):
    """Convolution, pixel shuffle to twice the rows, sharpening, two residual layers."""

    scale = 2

    def __init__(self, channel_in: int, channel_out: int, num_groups: int) -> None:
        self.conv = Conv(
            channel_in,
            channel_out * self.scale**2,
            3,
            padding=1,
            kernel_init=icnr(9 * channel_in, self.scale),
            bias_init=constant(0.0),
        )
        self.sharp = Conv(
            channel_out,
            channel_out,
            3,
            padding=1,
            kernel_init=xavier_normal(9 * channel_out, 9 * channel_out),
            bias_init=constant(0.0),
        )
        self.residual_conv_0 = Conv(channel_out, channel_out, 3, padding=1)
        self.residual_norm_0 = GroupNorm(num_groups, channel_out)
        self.residual_conv_1 = Conv(channel_out, channel_out, 3, padding=1)
        self.residual_norm_1 = GroupNorm(num_groups, channel_out)

    def __call__(self, field: Field, context: Context) -> Field:
        field = pixel_shuffle_field(self.conv(field), self.scale)
        rows = field.layout
        field = add(field, self.sharp(field, rows))
        x = self.residual_norm_0(self.residual_conv_0(field, rows))
        x = x.like(jax.nn.silu(x.data))
        x = self.residual_norm_1(self.residual_conv_1(x, rows))
        return field.like(jax.nn.silu(x.data) + field.data)


class Head(nnx.Module):
    """The last upsampling: convolution, pixel shuffle, convolution to the output."""

    scale = 2

    def __init__(self, channel_in: int, channel_out: int) -> None:
        self.conv = Conv(
            channel_in,
            channel_out * self.scale**2,
            3,
            padding=1,
            kernel_init=icnr(9 * channel_in, self.scale),
            bias_init=constant(0.0),
        )
        self.out = Conv(channel_out, channel_out, 3, padding=1)

    def __call__(self, field: Field, context: Context) -> Field:
        field = pixel_shuffle_field(self.conv(field), self.scale)
        return self.out(field, field.layout)
