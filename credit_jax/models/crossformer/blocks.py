"""Blocks of the CrossFormer family: embedding, transformer, encoder and decoder.

The encoder has four stages, each a cross-scale strided convolution followed by short
and long window attention. The decoder has three blocks that double the grid, each
concatenated with the output of the stage of its size, and a head that doubles it once
more. The models differ in the blocks of the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.models.common import resampling
from credit_jax.models.common.config import FieldSpec, Prediction
from credit_jax.models.crossformer.attention import QueryKeyValue, WindowAttention
from credit_jax.models.crossformer.config import EncoderDecoderConfig, StagesConfig
from credit_jax.models.diffusion.process import NOISED, TIME
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Conv, FeedForward
from credit_jax.nn.parameters import stack_blocks
from credit_jax.nn.run_blocks import run_block, scan_blocks
from credit_jax.ops.space_to_depth import IntPair, conv_out_size
from credit_jax.parallel.compiler import BLOCKS, EMBEDDING
from credit_jax.parallel.domain.attention import attention_layouts
from credit_jax.parallel.domain.conv import conv2d_scales, scale_padding
from credit_jax.parallel.domain.rearrange import join
from credit_jax.parallel.domain.strips import Windows
from credit_jax.parallel.rows.exchange import WINDOWS, reshard
from credit_jax.parallel.rows.layout import Field

# Biases of short and of long attention; None for windows of one token.
Biases = tuple[Float[Array, "short short"] | None, Float[Array, "long long"] | None]
# Constructors of the feed-forward layers of a block, see `TransformerBlock`.
FeedForwards = tuple[Callable[..., Any], Callable[..., Any]]
DENSE: FeedForwards = (FeedForward, FeedForward)


class CrossEmbed(nnx.Module):
    """Convolutions of several kernel sizes and one stride, concatenated."""

    # Padding is that of `parallel.domain.conv.scale_padding`. Kernel i of ascending
    # sizes (from 0) has channel_out // 2**(i + 1) output channels, the largest has the
    # remaining ones.

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
        """Embeds a field."""
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
    """Short attention, feed-forward, long attention, feed-forward, all residual."""

    # Input and output have the layout of short windows. Long attention and the layer
    # after it use the layout of long windows, so a block reshards twice.

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
        query_key_value: type[QueryKeyValue] = QueryKeyValue,
        feed_forwards: FeedForwards = DENSE,
    ) -> None:
        attention = partial(
            WindowAttention,
            channels,
            dim_head=dim_head,
            dropout=attn_dropout,
            query_key_value=query_key_value,
        )
        after_short, after_long = feed_forwards
        self.short_attention = attention("short", local_window)
        self.short_feed_forward = after_short(channels, dropout=ff_dropout)
        self.long_attention = attention("long", global_window)
        self.long_feed_forward = after_long(channels, dropout=ff_dropout)

    def ready(self) -> Biases:
        """Returns the biases; `scan_blocks` computes those of all blocks at once."""
        return self.short_attention.bias(), self.long_attention.bias()

    def __call__(
        self, field: Field, context: Context, ready: Biases = (None, None)
    ) -> Field:
        """Runs the block."""
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


class CrossFormerStage(nnx.Module):
    """The embedding and the transformer blocks of a stage, run by `scan_blocks`."""

    def __init__(
        self,
        config: StagesConfig,
        index: int,
        channel_in: int,
        *,
        query_key_value: type[QueryKeyValue] = QueryKeyValue,
        feed_forwards: FeedForwards = DENSE,
    ) -> None:
        self.depth = depth = config.depth[index]
        windows = config.local_window_size[index], config.global_window_size[index]
        # Without attention, the output of the embedding is not in windows.
        self.windows = windows if depth else (1, 1)
        block = partial(
            TransformerBlock,
            *(config.dim[index], *windows),
            dim_head=config.dim_head,
            attn_dropout=getattr(config, "attn_dropout", 0.0),
            ff_dropout=getattr(config, "ff_dropout", 0.0),
            query_key_value=query_key_value,
            feed_forwards=feed_forwards,
        )
        self.embed = CrossEmbed(
            channel_in,
            config.dim[index],
            config.cross_embed_kernel_sizes[index],
            config.cross_embed_strides[index],
            symmetric=config.symmetric_embedding,
        )
        if depth:
            self.blocks = stack_blocks(block, depth)

    def __call__(self, field: Field, context: Context) -> Field:
        field = run_block(context, self.embed, field, windows=self.windows)
        if not self.depth:
            return field
        with jax.named_scope(BLOCKS):
            return scan_blocks(context, self.blocks, field, self.depth)


def decoder_blocks(
    config: StagesConfig, make_up: Callable[[int, int, int], nnx.Module]
) -> tuple[Any, int]:
    """Returns the blocks of a decoder, and the channels that they leave to its head."""
    ups, width = nnx.List(), config.dim[3]
    for index, skip in enumerate((config.dim[2], config.dim[1], config.dim[0])):
        channels = config.dim[3] // 2 ** (index + 1)
        ups.append(make_up(width, channels, config.dim[0]))
        width = channels + skip
    return ups, width


class EncoderDecoder(nnx.Module):
    """Base class of the models of the family."""

    # Subclasses may set the layers that make vectors of the time of a diffusion
    # process, which are added to the outputs of the stages, and those that add noise to
    # the outputs of the stages and of the blocks of the decoder.

    config: Any
    time_embedding: Any = None
    encoder_noise: Sequence[Any] = ()
    decoder_noise: Sequence[Any] = ()

    def __init__(
        self,
        config: EncoderDecoderConfig,
        make_up: Callable[[int, int, int], nnx.Module] = resampling.PixelShuffleBlock,
        make_head: Callable[[int, int], nnx.Module] = resampling.PixelShuffleHead,
        feed_forwards: FeedForwards = DENSE,
    ) -> None:
        self.config = config
        x, y = config.inputs["x"], config.output
        assert isinstance(x, FieldSpec), "the input x is a field"
        folded = x.channels * (config.frames if config.frame_fold == "channel" else 1)
        self.cube_embedding = resampling.PatchEmbed(
            folded, config.dim[0], config.frames, config.patch
        )
        # Fields of a diffusion process (one frame, no patches) are concatenated with x.
        others = [s for name, s in config.network_inputs.items() if name != "x"]
        folded += sum(s.channels for s in others if isinstance(s, FieldSpec))
        widths = (folded if config.patch == (1, 1) else config.dim[0], *config.dim)
        self.stages = nnx.List(
            CrossFormerStage(config, i, widths[i], feed_forwards=feed_forwards)
            for i in range(4)
        )
        self.up_blocks, width = decoder_blocks(config, make_up)
        self.head = make_head(width, y.channels * y.frames)

    def __call__(self, inputs: Mapping[str, Array], context: Context) -> Prediction:
        """Predicts from local samples and rows, in blocks over the domain axis."""
        config = self.config
        entering = [inputs[name] for name in (NOISED, "x") if name in inputs]
        x = jnp.concatenate(entering, 1) if len(entering) > 1 else entering[0]
        fold = config.frame_fold if config.patch == (1, 1) else "channel"
        field = resampling.enter(
            context.precision.cast(x),
            config.image_height,
            context,
            config.padding,
            fold,
        )
        if config.patch != (1, 1):
            field = run_block(context, self.cube_embedding, field)
        added: Sequence[Float[Array, "batch channel"]] = ()
        if self.time_embedding is not None:
            time = context.precision.cast(inputs[TIME])
            added = run_block(context, self.time_embedding, time)
        encodings = []
        for index, stage in enumerate(self.stages):
            field = stage(field, context.fold_in(index))
            if added:
                field = field.like(field.data + added[index][:, None, None])
            field = self._noisy(self.encoder_noise, index, field, context)
            encodings.append(field)
        for index, up in enumerate(self.up_blocks):
            field = run_block(context, up, field)
            field = self._noisy(self.decoder_noise, index, field, context)
            field = join(field, encodings[2 - index])
        field = run_block(context, self.head, field)
        y = resampling.leave(field, config, interpolate=config.interp).astype(x.dtype)
        return resampling.correct(config, x, y, context)

    def _noisy(
        self, layers: Sequence[Any], index: int, field: Field, context: Context
    ) -> Field:
        """Adds the noise of the layer of a stage or block, if there is one."""
        if index >= len(layers):
            return field
        layer, size = layers[index], self.config.noise_latent_dim
        name = "latent" if self.config.correlated else f"{layer.name} latent"
        latent = context.normal_vector(name, field.data.shape[0], size)
        return field.like(run_block(context, layer, field, latent))
