"""CREDIT's `nextgen_wxformer` (models/wxformer/wxformer_next.py).

The encoder and decoder of WXFormer, with attention over levels before the encoder,
global mixing through a few nodes between encoder and decoder, and the last input frame
added to the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float
from pydantic import PositiveInt

from credit_jax.config.messages import divisors
from credit_jax.models.common.pixel_shuffle import PixelShuffleBlock, PixelShuffleHead
from credit_jax.models.common.variables import VariableKeys
from credit_jax.models.crossformer.attention import SeparateQueryKeyValue
from credit_jax.models.crossformer.config import StagesConfig
from credit_jax.models.crossformer.level_attention import (
    BiasedLevelAttention,
    LevelAttention,
)
from credit_jax.models.crossformer.stage import CrossFormerStage
from credit_jax.nn.context import Context
from credit_jax.nn.layers import GroupNorm, Linear
from credit_jax.nn.parameters import parameter
from credit_jax.nn.run_blocks import run_block
from credit_jax.ops.activations import gelu
from credit_jax.parallel.collectives import psum
from credit_jax.parallel.domain.rearrange import join
from credit_jax.parallel.domain.resize import resize_bilinear
from credit_jax.parallel.params.initializers import Initializer
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.rows.reshard import in_rows, reshard
from credit_jax.parallel.scopes import INPUT, OUTPUT

EXPANSION = 2


class SpectralNodes(nnx.Module):
    """CREDIT's SpectralGNNBottleneck: points to nodes, a network at each node, back.

    Each shard sums over its own rows, and a `psum` of (batch, node, channel) sums over
    shards. The weights depend on the grid, as they have a value for every point.

    Args of the constructor:
        channels: number of channels of the field.
        height, width: number of latitudes and of longitudes of the field.
        nodes: number of nodes.
    """

    tp_plan = (("up", "down"),)

    def __init__(self, channels: int, height: int, width: int, nodes: int) -> None:
        points = height * width
        self.norm = GroupNorm(1, channels)
        self.gather = parameter(
            Initializer("normal", points**-0.5), (nodes, height, width), (None,) * 3
        )
        self.scatter = parameter(
            Initializer("normal", nodes**-0.5), (height, width, nodes), (None,) * 3
        )
        self.up = Linear(channels, EXPANSION * channels)
        self.down = Linear(EXPANSION * channels, channels)

    def __call__(self, field: Field, context: Context) -> Field:
        field = in_rows(field)
        normal, layout = self.norm(field).data, field.layout
        nodes = self._gathered(field.like(normal), context)
        nodes = self.down(gelu(self.up(nodes, context)), context)
        weights = layout.local(self.scatter[...])
        change = jnp.einsum("bkc,rwk->brwc", nodes, weights)
        return field.like(field.data + change.astype(field.data.dtype))

    def _gathered(
        self, field: Field, context: Context
    ) -> Float[Array, "batch node channel"]:
        """Returns the nodes, equal on all shards; padding rows have weight 0."""
        weights = field.layout.local(jnp.moveaxis(self.gather[...], 0, -1))
        part = jnp.einsum(
            "brwc,rwk->bkc",
            field.data,
            weights,
            preferred_element_type=context.precision.wide,
        )
        return psum(part, field.layout.axis).astype(field.data.dtype)


class NextGenWXFormerConfig(VariableKeys, StagesConfig):
    """Constructor keys of CREDIT's NextGenWXFormer, with its defaults.

    Attributes:
        col_attn_heads: number of heads of the attention over levels.
        col_attn_stride: number of rows and of columns over which its input is pooled.
        decoder_col_attn: whether there is another one after the decoder.
        num_spectral_nodes: number of nodes that mix all points of the last stage.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        **StagesConfig.small_keys,
        "cross_embed_strides": [2, 2, 2, 2],
        "col_attn_heads": 2,
        "num_spectral_nodes": 4,
    }

    ignored: ClassVar[Mapping[str, str]] = {
        key: f"CREDIT's nextgen_wxformer ignores it{more}"
        for key, more in {
            "padding_conf": ": nothing is padded",
            "post_conf": "; correct in postblocks.per_step",
            "interp": ": the output is always interpolated to the grid",
            "attn_dropout": ": there is no dropout",
            "ff_dropout": ": there is no dropout",
            "output_frames": ": the output has one frame",
            "patch_height": ": there are no patches",
            "patch_width": ": there are no patches",
            "frame_patch_size": "",
            "attention_type": "",
            "decoder_attention_type": "",
            "upsample_with_ps": ": the decoder is always the pixel-shuffle one",
            "upsample_v_conv": "",
            "pad_lat": ": nothing is padded",
            "pad_lon": ": nothing is padded",
        }.items()
    }
    output_frames: ClassVar[int] = 1

    type: Literal["nextgen_wxformer"] = "nextgen_wxformer"
    col_attn_heads: PositiveInt = 4
    col_attn_stride: PositiveInt = 1
    decoder_col_attn: bool = False
    num_spectral_nodes: PositiveInt = 64

    def without_effect(self) -> dict[str, str]:
        """Returns a note on output-only channels to which others are added."""
        shared = min(self.output_only_channels, self.input_only_channels)
        if shared < 1:
            return {}
        why = (
            f"is not, but the first {shared} of {self.output_only_channels} have the "
            "input-only channels of the last frame added, as in CREDIT"
        )
        return {"output_only_channels": why}

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """See `EncoderDecoderConfig.problems`."""
        return [*self.shape_problems(), *self._level_problems()] or [
            *self.stage_problems(),
            *self.group_problems(),
            *self.tensor_problems(tensor),
        ]

    def _level_problems(self) -> list[str]:
        problems = []
        if self.channels < 1 or self.levels < 1:
            problems.append(
                f"model has {self.channels} channels on {self.levels} levels; expected "
                "at least 1 of each: the model has attention over levels"
            )
        elif self.channels % self.col_attn_heads:
            problems.append(
                f"model.channels is {self.channels}, which model.col_attn_heads = "
                f"{self.col_attn_heads} does not divide; would fit: "
                f"{divisors(self.channels)}"
            )
        smallest = min(self.image_height, self.image_width)
        if self.col_attn_stride > smallest:
            problems.append(
                f"model.col_attn_stride is {self.col_attn_stride}; expected at most "
                f"{smallest}, the smaller side of the grid"
            )
        return problems


class NextGenWXFormer(nnx.Module):
    """The NextGen WXFormer model; see `NextGenWXFormerConfig` for its keys."""

    def __init__(self, config: NextGenWXFormerConfig) -> None:
        self.config = config
        levels = (
            config.channels,
            config.levels,
            config.col_attn_heads,
            config.col_attn_stride,
        )
        self.levels = BiasedLevelAttention(*levels)
        widths = (config.input_channels * config.frames, *config.dim)
        self.stages = nnx.List(
            _stage(config, index, widths[index]) for index in range(4)
        )
        last, groups = config.dim[3], config.dim[0]
        grid = config.geometry().stages[-1]
        self.nodes = SpectralNodes(
            last, grid.height, grid.width, config.num_spectral_nodes
        )
        ups, width = [], last
        for index, skip in enumerate((config.dim[2], config.dim[1], config.dim[0])):
            channels = last // 2 ** (index + 1)
            ups.append(PixelShuffleBlock(width, channels, groups))
            width = channels + skip
        self.up_blocks = nnx.List(ups)
        self.head = PixelShuffleHead(width, config.output_channels, smooth=False)
        if config.decoder_col_attn:
            self.output_levels = LevelAttention(*levels)

    def __call__(
        self, inputs: Mapping[str, Array], context: Context
    ) -> Float[Array, "batch channel_out 1 rows lon"]:
        """Predicts from local samples and rows, in block layout over the domain axis.

        Frames are folded into channels as (time * channel).

        Args:
            inputs: "x", (batch, channel, time, rows, lon).
            context: context of the forward pass.
        """
        x = inputs["x"]
        field = self._enter(context.precision.cast(x), context)
        encodings = []
        for index, stage in enumerate(self.stages):
            field = stage(field, context.fold_in(index))
            encodings.append(field)
        field = run_block(context, self.nodes, field)
        for index, up in enumerate(self.up_blocks):
            skip = encodings[2 - index]
            size = skip.layout.size, skip.row_points
            field = join(resize_bilinear(run_block(context, up, field), size), skip)
        field = run_block(context, self.head, field)
        return self._leave(field, x, context)

    def _enter(
        self, x: Float[Array, "batch channel time rows lon"], context: Context
    ) -> Field:
        """Applies `BiasedLevelAttention` to each frame; frames become channels."""
        batch, _, time, rows, lon = x.shape
        layout = context.rows(self.config.image_height)
        with jax.named_scope(INPUT):
            frames = x.transpose(0, 2, 3, 4, 1).reshape(batch * time, rows, lon, -1)
            count = self.config.channels * self.config.levels
            upper, rest = jnp.split(frames, [count], -1)
        upper = run_block(context, self.levels, Field(upper, layout))
        with jax.named_scope(INPUT):
            frames = jnp.concatenate([upper, rest], -1)
            frames = frames.reshape(batch, time, rows, lon, -1)
            frames = frames.transpose(0, 2, 3, 1, 4)
            return Field(frames.reshape(batch, rows, lon, -1), layout)

    def _leave(
        self,
        field: Field,
        x: Float[Array, "batch channel time rows lon"],
        context: Context,
    ) -> Float[Array, "batch channel_out 1 rows lon"]:
        """Interpolates to the grid and adds the last frame, 0 for absent channels."""
        config = self.config
        with jax.named_scope(OUTPUT):
            field = resize_bilinear(field, (config.image_height, config.image_width))
            field = reshard(field, field.layout.to_blocks())
        if config.decoder_col_attn:
            count = config.channels * config.levels
            upper, rest = jnp.split(field.data, [count], -1)
            upper = run_block(context, self.output_levels, field.like(upper)).data
            field = field.like(jnp.concatenate([upper, rest], -1))
        with jax.named_scope(OUTPUT):
            base = x[:, : config.output_channels, -1]
            absent = config.output_channels - base.shape[1]
            base = jnp.pad(base, ((0, 0), (0, absent), (0, 0), (0, 0)))
            change = field.data.transpose(0, 3, 1, 2).astype(x.dtype)
            return (change + base)[:, :, None]


def _stage(
    config: NextGenWXFormerConfig, index: int, channel_in: int
) -> CrossFormerStage:
    return CrossFormerStage(
        channel_in,
        config.dim[index],
        depth=config.depth[index],
        kernel_sizes=config.cross_embed_kernel_sizes[index],
        stride=config.cross_embed_strides[index],
        local_window=config.local_window_size[index],
        global_window=config.global_window_size[index],
        dim_head=config.dim_head,
        query_key_value=SeparateQueryKeyValue,
    )
