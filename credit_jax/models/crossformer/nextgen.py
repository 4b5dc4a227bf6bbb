"""CREDIT's `nextgen_wxformer` (models/wxformer/wxformer_next.py), or `wxformer_column`.

The encoder and decoder of WXFormer, with attention over levels before the encoder,
global mixing through a few nodes between encoder and decoder, and the last input frame
added to the output.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from pydantic import PositiveInt

from credit_jax.kernels import dense
from credit_jax.models.common import config as common
from credit_jax.models.common.resampling import PixelShuffleBlock, PixelShuffleHead
from credit_jax.models.crossformer import config as family
from credit_jax.models.crossformer.attention import SeparateQueryKeyValue
from credit_jax.models.crossformer.blocks import CrossFormerStage, decoder_blocks
from credit_jax.nn.context import Context
from credit_jax.nn.layers import GroupNorm, LayerNorm, Linear
from credit_jax.nn.parameters import parameter
from credit_jax.nn.run_blocks import run_block
from credit_jax.ops.activations import gelu
from credit_jax.parallel.collectives import psum
from credit_jax.parallel.compiler import ATTENTION, INPUT, OUTPUT
from credit_jax.parallel.domain.pool import avg_pool2d_field, resize_bilinear
from credit_jax.parallel.domain.rearrange import join
from credit_jax.parallel.params.spec import Initializer, constant, torch_uniform
from credit_jax.parallel.rows.exchange import in_rows, reshard
from credit_jax.parallel.rows.layout import Field
from credit_jax.state_dict.key_table import Rule, key_table
from credit_jax.state_dict.torch_model import TorchModel, Upgrade


class LevelAttention(nnx.Module):
    """CREDIT's ColumnAttention: tokens are levels, their channels the variables."""

    # Its result is added to the field. The linear layers have no bias and no spectral
    # norm.

    def __init__(self, variables: int, levels: int, heads: int, stride: int) -> None:
        self.variables, self.levels, self.stride = variables, levels, stride
        size = variables // heads
        self.norm = LayerNorm(variables)
        self.to_qkv = parameter(
            Initializer("uniform", math.sqrt(6.0 / (4 * variables))),
            (variables, 3, heads, size),
            ("embed", None, None, "head_dim"),
        )
        init = torch_uniform(variables)
        self.to_out = parameter(init, (variables, variables), ("embed", "embed"))
        self.proj = parameter(init, (variables, variables), ("embed", "embed"))

    def __call__(self, field: Field, context: Context) -> Field:
        """Adds the attention to a field with channels (variable * level)."""
        seen, stride = field, (self.stride, self.stride)
        if self.stride > 1:
            seen = avg_pool2d_field(field, stride, stride=stride)
        attend = context.remat.attention(lambda data: self._attend(data, context))
        change = seen.like(attend(seen.data))
        if self.stride > 1:
            size = field.layout.size, field.data.shape[2]
            change = resize_bilinear(change, size, out=field.layout)
        return field.like(field.data + change.data)

    @jax.named_scope(ATTENTION)
    def _attend(
        self, x: Float[Array, "batch rows lon channel"], context: Context
    ) -> Float[Array, "batch rows lon channel"]:
        lead = x.shape[:-1]
        tokens = x.reshape(*lead, self.variables, self.levels)
        tokens = self.norm(jnp.swapaxes(tokens, -1, -2))
        q, k, v = jnp.moveaxis(dense(tokens, self.to_qkv[...]), -3, 0)
        logits = jnp.einsum(
            "...qhd,...khd->...hqk",
            q * q.shape[-1] ** -0.5,
            k,
            preferred_element_type=context.precision.wide,
        )
        weights = jax.nn.softmax(logits, -1).astype(v.dtype)
        mixed = jnp.einsum("...hqk,...khd->...qhd", weights, v)
        out = dense(mixed.reshape(*tokens.shape), self.to_out[...])
        return jnp.swapaxes(dense(out, self.proj[...]), -1, -2).reshape(x.shape)


class BiasedLevelAttention(nnx.Module):
    """Adds a bias for every variable and level, then applies `LevelAttention`."""

    def __init__(self, variables: int, levels: int, heads: int, stride: int) -> None:
        channels = variables * levels
        self.bias = parameter(constant(0.0), (channels,), ("embed",))
        self.attention = LevelAttention(variables, levels, heads, stride)

    def __call__(
        self, field: Field, context: Context
    ) -> Float[Array, "batch rows lon channel"]:
        data = field.data + self.bias[...][None, None, None]
        return self.attention(field.like(data), context).data


EXPANSION = 2


class SpectralNodes(nnx.Module):
    """CREDIT's SpectralGNNBottleneck: points to nodes, a network at each node, back."""

    # Each shard sums over its own rows, and a `psum` of (batch, node, channel) sums
    # over shards. The weights depend on the grid, as they have a value for every point.

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
        layout = field.layout
        # The nodes are equal on all shards; padding rows have weight 0.
        part = jnp.einsum(
            "brwc,rwk->bkc",
            self.norm(field).data,
            layout.local(jnp.moveaxis(self.gather[...], 0, -1)),
            preferred_element_type=context.precision.wide,
        )
        nodes = psum(part, layout.axis).astype(field.data.dtype)
        nodes = self.down(gelu(self.up(nodes, context)), context)
        weights = layout.local(self.scatter[...])
        change = jnp.einsum("bkc,rwk->brwc", nodes, weights)
        return field.like(field.data + change.astype(field.data.dtype))


class NextGenWXFormerConfig(common.VariableKeys, family.StagesConfig):
    """Constructor keys of CREDIT's NextGenWXFormer, with its defaults.

    Attributes:
        type: "nextgen_wxformer", or its new name in CREDIT's pull request 478,
            "wxformer_column", whose decoder has the strides of the encoder.
        col_attn_heads: number of heads of the attention over levels.
        col_attn_stride: number of rows and of columns over which its input is pooled.
        decoder_col_attn: whether there is another one after the decoder.
        num_spectral_nodes: number of nodes that mix all points of the last stage.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        **family.StagesConfig.small_keys,
        "cross_embed_strides": [2, 2, 2, 2],
        "col_attn_heads": 2,
        "num_spectral_nodes": 4,
    }

    ignored: ClassVar[Mapping[str, str]] = common.ignored_by(
        "nextgen_wxformer",
        "frame_patch_size attention_type decoder_attention_type upsample_v_conv",
        padding_conf=": nothing is padded",
        post_conf="; correct in postblocks.per_step",
        interp=": the output is always interpolated to the grid",
        attn_dropout=": there is no dropout",
        ff_dropout=": there is no dropout",
        output_frames=": the output has one frame",
        patch_height=": there are no patches",
        patch_width=": there are no patches",
        upsample_with_ps=": the decoder is always the pixel-shuffle one",
        pad_lat=": nothing is padded",
        pad_lon=": nothing is padded",
    )
    output_frames: ClassVar[int] = 1

    type: Literal["nextgen_wxformer", "wxformer_column"] = "nextgen_wxformer"
    col_attn_heads: PositiveInt = 4
    col_attn_stride: PositiveInt = 1
    decoder_col_attn: bool = False
    num_spectral_nodes: PositiveInt = 64

    @property
    def up_scales(self) -> tuple[int, ...]:
        """Factors between the grids of the decoder, before its interpolation."""
        if self.type == "nextgen_wxformer":
            return (2,) * 4
        return self.cross_embed_strides[::-1]

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

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`."""
        yield from super().problems()
        if self.channels < 1 or self.levels < 1:
            yield (
                f"model has {self.channels} channels on {self.levels} levels; expected "
                "at least 1 of each: the model has attention over levels"
            )
        else:
            yield from common.divisor_problems(
                "col_attn_heads", self.col_attn_heads, self.channels, "model.channels"
            )
        smallest = min(self.image_height, self.image_width)
        if self.col_attn_stride > smallest:
            yield (
                f"model.col_attn_stride is {self.col_attn_stride}; expected at most "
                f"{smallest}, the smaller side of the grid"
            )


_LEVEL_ATTENTION = """
    norm                  norm    norm
    attn.in_proj_weight   to_qkv  (n h d) i -> i n h d
    attn.out_proj.weight  to_out  o i -> i o
    proj.weight           proj    o i -> i o
"""
_NODES = """
    agg_w      gather   k (h w) -> k h w
    scatter_w  scatter  (h w) k -> h w k
    norm       norm     norm
    mlp.0      up       linear
    mlp.2      down     linear
"""


def _block_names(config: NextGenWXFormerConfig) -> list[str]:
    names = family.block_names(config)
    names.insert(names.index("up_block1"), "spectral_bottleneck")
    return [*names, *(["dec_col_attn"] if config.decoder_col_attn else [])]


# Projections of the older version: 1 x 1 convolutions, with q, k and v in one.
_FUSED = re.compile(r"(.*)\.to_qkv\.(weight|weight_orig|weight_u|weight_v)")
_CONVOLUTION = re.compile(r".*\.(to_out|layers\.1|layers\.4)\.weight(_orig)?")


def _is_older(key: str, array: Any) -> bool:
    """Whether an entry is a projection of the version with convolutions."""
    if _FUSED.fullmatch(key):
        return True
    return bool(_CONVOLUTION.fullmatch(key)) and np.shape(array)[2:] == (1, 1)


def _split(key: str, array: Any) -> dict[str, Any]:
    """Splits q, k and v, with the same `weight_v`; 1 x 1 kernels become matrices."""
    match = _FUSED.fullmatch(key)
    if match is None:
        return {key: array.reshape(array.shape[:2])}
    stem, leaf = match.groups()
    if leaf == "weight_v":
        parts = [array] * 3
    else:
        third = array.shape[0] // 3
        matrix = array.reshape(array.shape[:2]) if leaf != "weight_u" else array
        parts = [matrix[i * third : (i + 1) * third] for i in range(3)]
    return {f"{stem}.to_{n}.{leaf}": p for n, p in zip("qkv", parts, strict=True)}


NEXTGEN = TorchModel(
    key_table=(
        Rule("level_embedding.bias", "levels/bias"),
        *key_table(_LEVEL_ATTENTION, "col_attn", "levels/attention"),
        *family.PADDED_EMBEDDINGS,
        *family.transformer_layers(linear=True),
        *key_table(_NODES, "spectral_bottleneck", "nodes"),
        *family.PIXEL_SHUFFLE_DECODER,
        *key_table(_LEVEL_ATTENTION, "dec_col_attn", "output_levels"),
    ),
    block_names=_block_names,
    renames=(family.BRANCH,),
    upgrade=Upgrade(
        _is_older,
        _split,
        "the checkpoint is of the version with convolutions: q, k and v are thirds of "
        "one matrix, as CREDIT reads it. Under spectral norm the thirds of its u are "
        "no unit vectors, and evaluation divides by too small a sigma until training "
        "forwards have moved them",
    ),
    signature=re.compile(
        r"(^|\.)(level_embedding|col_attn|spectral_bottleneck|to_q)\."
    ),
)


@common.register_model(NextGenWXFormerConfig, NEXTGEN)
class NextGenWXFormer(nnx.Module):
    """The NextGen WXFormer model; see `NextGenWXFormerConfig` for its keys."""

    def __init__(self, config: NextGenWXFormerConfig) -> None:
        self.config = config
        levels = config.channels, config.levels
        levels = (*levels, config.col_attn_heads, config.col_attn_stride)
        self.levels = BiasedLevelAttention(*levels)
        widths = (config.input_channels * config.frames, *config.dim)
        self.stages = nnx.List(
            CrossFormerStage(
                config, i, widths[i], query_key_value=SeparateQueryKeyValue
            )
            for i in range(4)
        )
        grid = config.geometry().stages[-1]
        self.nodes = SpectralNodes(
            config.dim[3], grid.height, grid.width, config.num_spectral_nodes
        )
        scales = iter(config.up_scales)
        self.up_blocks, width = decoder_blocks(
            config, lambda *sizes: PixelShuffleBlock(*sizes, scale=next(scales))
        )
        self.head = PixelShuffleHead(
            width, config.output_channels, scale=next(scales), smooth=False
        )
        if config.decoder_col_attn:
            self.output_levels = LevelAttention(*levels)

    def __call__(
        self, inputs: Mapping[str, Array], context: Context
    ) -> Float[Array, "batch channel_out 1 rows lon"]:
        """Predicts from local samples and rows, in blocks over the domain axis."""
        # Frames are folded into channels as (time * channel).
        config, x = self.config, inputs["x"]
        layout = context.rows(config.image_height)
        batch, _, time, rows, lon = x.shape
        with jax.named_scope(INPUT):
            frames = context.precision.cast(x).transpose(0, 2, 3, 4, 1)
            frames = frames.reshape(batch * time, rows, lon, -1)
            count = config.channels * config.levels
            upper, remainder = jnp.split(frames, [count], -1)
        upper = run_block(context, self.levels, Field(upper, layout))
        with jax.named_scope(INPUT):
            frames = jnp.concatenate([upper, remainder], -1)
            frames = frames.reshape(batch, time, rows, lon, -1)
            frames = frames.transpose(0, 2, 3, 1, 4)
            field = Field(frames.reshape(batch, rows, lon, -1), layout)
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
        with jax.named_scope(OUTPUT):
            field = resize_bilinear(field, (config.image_height, config.image_width))
            field = reshard(field, field.layout.to_blocks())
        if config.decoder_col_attn:
            upper, remainder = jnp.split(field.data, [count], -1)
            upper = run_block(context, self.output_levels, field.like(upper)).data
            field = field.like(jnp.concatenate([upper, remainder], -1))
        with jax.named_scope(OUTPUT):
            # The last frame is added, with 0 for absent channels.
            base = x[:, : config.output_channels, -1]
            absent = config.output_channels - base.shape[1]
            base = jnp.pad(base, ((0, 0), (0, absent), (0, 0), (0, 0)))
            change = field.data.transpose(0, 3, 1, 2).astype(x.dtype)
            return (change + base)[:, :, None]
