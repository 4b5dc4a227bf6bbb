"""WXFormer: CREDIT's `wxformer` and `wxformer_base` (models/wxformer/crossformer.py).

An encoder of four stages, each a cross-scale strided convolution followed by short and
long window attention, and a decoder of pixel-shuffle blocks with skip connections.
"""

from __future__ import annotations

from flax import nnx
from jaxtyping import Array, Float

from credit_jax.models.wxformer_config import WXFormerConfig
from credit_jax.nn.blocks import CrossEmbed, Head, PatchEmbed, TransformerBlock, UpBlock
from credit_jax.nn.context import Context
from credit_jax.nn.parameters import stack_blocks
from credit_jax.parallel.domain.padding import crop_globe, pad_globe
from credit_jax.parallel.domain.resize import resize_bilinear
from credit_jax.parallel.domain.shuffle import join
from credit_jax.parallel.layouts import Field
from credit_jax.parallel.rows import fetch


class Stage(nnx.Module):
    """One encoder stage: embedding and `depth` transformer blocks run by `lax.scan`."""

    def __init__(self, config: WXFormerConfig, index: int, channel_in: int) -> None:
        channels = config.dim[index]
        self.depth = config.depth[index]
        self.window = config.local_window_size[index]

        def block() -> TransformerBlock:
            return TransformerBlock(
                channels,
                config.local_window_size[index],
                config.global_window_size[index],
                dim_head=config.dim_head,
                attn_dropout=config.attn_dropout,
                ff_dropout=config.ff_dropout,
            )

        self.embed = CrossEmbed(
            channel_in,
            channels,
            config.cross_embed_kernel_sizes[index],
            config.cross_embed_strides[index],
        )
        if self.depth:
            self.blocks = stack_blocks(block, self.depth)

    def __call__(self, field: Field, context: Context) -> Field:
        field = context.run(self.embed, field, window=self.window)
        if not self.depth:
            return field
        return context.scan(self.blocks, field, self.depth)


class WXFormer(nnx.Module):
    """The whole model; see `WXFormerConfig` for its keys."""

    def __init__(self, config: WXFormerConfig) -> None:
        self.config = config
        frames_in = config.input_channels * config.frames
        frames_out = config.output_channels * config.output_frames
        self.cube_embedding = PatchEmbed(
            frames_in, config.dim[0], config.frames, config.patch
        )
        widths = (frames_in if config.patch == (1, 1) else config.dim[0], *config.dim)
        self.stages = nnx.List(
            Stage(config, index, widths[index]) for index in range(4)
        )
        last, groups = config.dim[3], config.dim[0]
        skips = config.dim[2], config.dim[1], config.dim[0]
        ups, width = [], last
        for index, skip in enumerate(skips):
            channels = last // 2 ** (index + 1)
            ups.append(UpBlock(width, channels, groups))
            width = channels + skip
        self.up_blocks = nnx.List(ups)
        self.head = Head(width, frames_out)

    def __call__(
        self, x: Float[Array, "batch channel time rows lon"], context: Context
    ) -> Float[Array, "batch channel_out time_out rows lon"]:
        """Predict; rows lie in equal blocks over the domain axis, in and out.

        Differs from CREDIT: nothing; frames fold channel-major (channel * time).
        """
        config = self.config
        field = self._enter(context.precision.cast(x), context)
        if config.patch != (1, 1):
            field = context.run(self.cube_embedding, field)
        encodings = []
        for index, stage in enumerate(self.stages):
            field = stage(field, context.fold(index))
            encodings.append(field)
        for index, up in enumerate(self.up_blocks):
            field = join(context.run(up, field), encodings[2 - index])
        field = context.run(self.head, field)
        return self._leave(field, context).astype(x.dtype)

    def _enter(
        self, x: Float[Array, "batch channel time rows lon"], context: Context
    ) -> Field:
        """To padded NHWC, frames folded into channels."""
        batch, channels, time, rows, lon = x.shape
        data = x.transpose(0, 3, 4, 1, 2).reshape(batch, rows, lon, channels * time)
        field = Field(data, context.rows(self.config.image_height))
        pad = self.config.padding
        if pad is None:
            return field
        return pad_globe(field, mode=pad.mode, lat=pad.pad_lat, lon=pad.pad_lon)

    def _leave(
        self, field: Field, context: Context
    ) -> Float[Array, "batch channel_out time_out rows lon"]:
        """Crop the padding, interpolate to the grid, unfold frames."""
        config, pad = self.config, self.config.padding
        if pad is not None:
            field = crop_globe(field, lat=pad.pad_lat, lon=pad.pad_lon)
        if config.interp:
            size = (config.image_height, config.image_width)
            field = resize_bilinear(field, size)
        field = fetch(field, field.layout.home())
        batch, rows, lon, _ = field.data.shape
        x = field.data.reshape(batch, rows, lon, -1, config.output_frames)
        return x.transpose(0, 3, 4, 1, 2)
