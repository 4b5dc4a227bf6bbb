"""CREDIT's `swin` (models/swin.py): Swin Transformer V2 CR on one grid of patches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
from flax import nnx
from pydantic import Field as Key
from pydantic import PositiveInt

from credit_jax.models.common import config as common
from credit_jax.models.common import resampling
from credit_jax.models.swin import blocks
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Conv, LayerNorm, matmul
from credit_jax.nn.parameters import parameter, stack_blocks
from credit_jax.nn.run_blocks import run_block, scan_blocks
from credit_jax.ops.space_to_depth import IntPair
from credit_jax.parallel.compiler import BLOCKS, DECODER, EMBEDDING
from credit_jax.parallel.domain.rearrange import add, unpatch_field
from credit_jax.parallel.domain.windows import window_layout
from credit_jax.parallel.params.spec import Initializer, torch_uniform
from credit_jax.parallel.rows.exchange import WINDOWS, reshard
from credit_jax.parallel.rows.layout import Field
from credit_jax.state_dict.key_table import LINEAR, Rule, key_table
from credit_jax.state_dict.torch_model import TorchModel

Blocks = Annotated[int, Key(ge=1, le=common.MAX_DEPTH)]


class SwinConfig(common.VariableKeys, common.PaddedConfig):
    """Constructor keys of CREDIT's SwinTransformerV2Cr, with its defaults.

    Attributes:
        img_size: rows and columns of the grid.
        patch_size: points along each side of a patch.
        window_size: tokens along each side of a window; an integer for both.
        img_window_ratio: number that divides the padded grid: without `window_size`,
            the points along each side of the padded grid divided by this are the
            tokens along each side of a window.
        frames: number of time steps of the input; if above 1, the mean of the first two
            enters the network.
        embed_dim: number of channels of all fields.
        depths, num_heads: number of blocks and of heads of each stage; all stages have
            the same grid.
        mlp_ratio: hidden units of the feed-forward layers divided by channels.
        init_values: initial scales of the norms; None for 1.
        proj_drop_rate, attn_drop_rate: dropout rates of projections and attention
            weights.
        drop_path_rate: probability of dropping a branch in the last block; it increases
            linearly from 0 in the first block.
        full_pos_embed: whether a trained field is added to the patches.
        rel_pos: whether the attention has a position bias.
        residual: whether the model predicts the change of the first input channels.
        use_spectral_norm: whether 2D convolutions and linear layers have spectral norm.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        "patch_size": 4,
        "img_window_ratio": 8,
        "embed_dim": 8,
        "depths": [2],
        "num_heads": [2],
    }
    small_is_padded: ClassVar[bool] = False

    ignored: ClassVar[Mapping[str, str]] = common.ignored_by(
        "swin",
        "drop_rate extra_norm_period extra_norm_stage sequential_attn global_pool "
        "weight_init interp in_chans out_chans image_height image_width pad_lat "
        "pad_lon",
        checkpoint_stages="; see trainer.activation_checkpoint",
    )

    type: Literal["swin"] = "swin"
    img_size: tuple[common.Side, common.Side] = (224, 224)
    patch_size: PositiveInt = 4
    window_size: common.Both | None = None
    img_window_ratio: PositiveInt = 32
    frames: PositiveInt = 1
    embed_dim: PositiveInt = 96
    depths: Annotated[tuple[Blocks, ...], Key(min_length=1)] = (2, 2, 6, 2)
    num_heads: tuple[PositiveInt, ...] = (3, 6, 12, 24)
    mlp_ratio: float = 4.0
    init_values: float | None = 0.0
    proj_drop_rate: common.Rate = 0.0
    attn_drop_rate: common.Rate = 0.0
    drop_path_rate: common.Rate = 0.0
    full_pos_embed: bool = False
    rel_pos: bool = True
    residual: bool = False
    use_spectral_norm: bool = False

    def without_effect(self) -> dict[str, str]:
        """Returns keys without effect; see `StrictModel.without_effect`."""
        return super().without_effect() | resampling.unseen_frames(self.frames)

    @property
    def inputs(self) -> Mapping[str, common.InputSpec]:
        """See `ModelConfig.inputs`."""
        return {"x": common.FieldSpec(self.input_channels, self.frames, *self.img_size)}

    @property
    def output(self) -> common.FieldSpec:
        """See `ModelConfig.output`."""
        return common.FieldSpec(self.output_channels, 1, *self.img_size)

    @property
    def patches(self) -> IntPair:
        """Rows and columns of patches."""
        rows, columns = self.padded
        return rows // self.patch_size, columns // self.patch_size

    @property
    def window(self) -> IntPair:
        """Rows and columns of a window, at most those of the grid of patches."""
        window = self.window_size
        if window is None:
            window = tuple(size // self.img_window_ratio for size in self.padded)
        rows, columns = (min(g, p) for g, p in zip(window, self.patches, strict=True))
        return rows, columns

    @property
    def shift(self) -> IntPair:
        """Shift (rows, columns) of every other block; 0 along a dim of one window."""
        rows, columns = (
            0 if size <= window else window // 2
            for size, window in zip(self.patches, self.window, strict=True)
        )
        return rows, columns

    def drop_path(self, stage: int) -> tuple[float, ...]:
        """Returns the drop-path rates of the blocks of a stage."""
        total, first = sum(self.depths), sum(self.depths[:stage])
        step = self.drop_path_rate / max(total - 1, 1)
        return tuple(step * (first + i) for i in range(self.depths[stage]))

    def geometry(self) -> common.Geometry:
        """Returns grid sizes along the layers; valid only if `problems()` is empty."""
        stages = tuple(
            common.StageGeometry(
                *self.patches,
                self.embed_dim,
                depth,
                heads,
                self.embed_dim // heads,
                self.window[0],
                self.window[0],
                attentions=1,
            )
            for depth, heads in zip(self.depths, self.num_heads, strict=True)
        )
        grid = self.img_size
        return common.Geometry(
            grid, self.padded, self.patches, stages, self.padded, grid
        )

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`: patches, windows, frames, channels, stages."""
        yield from super().problems()
        patch, dim = self.patch_size, self.embed_dim
        for name, size, count, window in zip(
            ("rows", "columns"), self.padded, self.patches, self.window, strict=True
        ):
            grid = f"the {name} of the padded grid"
            if problem := [*common.divisor_problems("patch_size", patch, size, grid)]:
                yield from problem
            elif window < 2:
                yield (
                    f"the windows have {window} {name}, {size} points // model."
                    f"img_window_ratio or model.window_size; expected at least 2"
                )
            else:
                key = "window_size, or that of img_window_ratio,"
                patches = f"the {name} of patches"
                yield from common.divisor_problems(key, window, count, patches)
        yield from resampling.mean_problems(self.frames)
        if self.residual and self.input_channels < self.output_channels:
            yield (
                f"model.residual adds {self.input_channels} input channels to "
                f"{self.output_channels} output channels; expected no fewer inputs"
            )
        if len(self.depths) != len(self.num_heads):
            yield (
                f"model.depths has {len(self.depths)} entries and model.num_heads "
                f"{len(self.num_heads)}; expected as many, one for each stage"
            )
        for number in dict.fromkeys(self.num_heads):
            name = "model.embed_dim"
            yield from common.divisor_problems("num_heads", number, dim, name)
        if self.mlp_ratio * dim < 1:
            yield f"model.mlp_ratio is {self.mlp_ratio}; expected more than 0"


def _block_names(config: SwinConfig) -> list[str]:
    # With `full_pos_embed` our output includes the position, unlike that of CREDIT's
    # patch_embed. "pos_embed" is no module, so it is not compared.
    embedding = "pos_embed" if config.full_pos_embed else "patch_embed"
    return [embedding, *(f"stages.{i}" for i in range(len(config.depths))), "head"]


_BLOCK = """
    attn.logit_scale          attention/logit_scale
    attn.qkv.weight           attention/qkv/kernel            (n h d) i -> i n h d
    attn.qkv.bias             attention/qkv/bias              (n h d) -> n h d
    attn.proj                 attention/proj                  from_heads
    attn.meta_mlp.fc1         attention/position_bias/hidden  linear
    attn.meta_mlp.fc2.weight  attention/position_bias/out     o i -> i o
    attn.meta_mlp.fc2.bias    attention/position_bias/bias
    norm1                     norm_0                          norm
    mlp.fc1                   feed_forward/fc1                linear
    mlp.fc2                   feed_forward/fc2                linear
    norm2                     norm_1                          norm
"""
SWIN = TorchModel(
    key_table=(
        *key_table("""
            pos_embed         embedding/position  1 e h w -> h w e
            patch_embed.proj  embedding/proj      conv
            patch_embed.norm  embedding/norm      norm
        """),
        *key_table(_BLOCK, "stages.{s}.blocks.{d}", "stages/{s}"),
        Rule("head.weight", "head/kernel", LINEAR),
    ),
    block_names=_block_names,
)


class Embedding(nnx.Module):
    """Embeds each patch to a vector, then a norm; may add a trained field."""

    def __init__(self, config: SwinConfig) -> None:
        size, channels = config.patch_size, config.embed_dim
        self.proj = Conv(config.input_channels, channels, size, stride=size)
        self.norm = LayerNorm(channels)
        self.with_position = config.full_pos_embed
        if self.with_position:
            self.position = parameter(
                Initializer("normal", 0.02),
                (*config.patches, channels),
                (None, None, "embed"),
            )

    @jax.named_scope(EMBEDDING)
    def __call__(self, field: Field, context: Context) -> Field:
        field = self.proj(field)
        data = self.norm(field.data)
        if self.with_position:
            data = data + field.layout.local(self.position[...])[None]
        return field.like(data)


class PatchExpansion(nnx.Module):
    """Maps each token to the values of all points of its patch, without bias."""

    def __init__(self, channel_in: int, channel_out: int) -> None:
        init, shape = torch_uniform(channel_in), (channel_in, channel_out)
        self.kernel = parameter(init, shape, ("embed", "embed"), matrix_out=(1,))

    @jax.named_scope(DECODER)
    def __call__(self, field: Field, context: Context) -> Field:
        return field.like(matmul(field.data, self.kernel[...]))


@common.register_model(SwinConfig, SWIN)
class Swin(nnx.Module):
    """The Swin model; see `SwinConfig` for its keys."""

    def __init__(self, config: SwinConfig) -> None:
        self.config = config
        self.embedding = Embedding(config)
        self.stages = nnx.List(
            stack_blocks(lambda stage=stage: _block(config, stage), depth)
            for stage, depth in enumerate(config.depths)
        )
        points = config.patch_size**2
        self.head = PatchExpansion(config.embed_dim, config.output_channels * points)

    def __call__(
        self, inputs: Mapping[str, Any], context: Context
    ) -> common.Prediction:
        """Predicts from local samples and rows, in blocks over the domain axis."""
        config, x = self.config, inputs["x"]
        cast = context.precision.cast(x)
        fold = "mean" if config.frames > 1 else "channel"
        # Differs from CREDIT: padding, with which CREDIT's model fails, is added before
        # the patch embedding and cropped after unpatching, as its source intends.
        entered = resampling.enter(
            cast, config.img_size[0], context, config.padding, fold
        )
        field = run_block(context, self.embedding, entered)
        rows = window_layout(field.layout, field.layout.size, config.window[0])
        field = reshard(field, rows, scope=WINDOWS)
        with jax.named_scope(BLOCKS):
            for index, depth in enumerate(config.depths):
                field = scan_blocks(
                    context.fold_in(index),
                    self.stages[index],
                    field,
                    depth,
                    variants=(blocks.PLAIN, blocks.SHIFTED),
                )
        field = run_block(context, self.head, field)
        field = unpatch_field(field, (config.patch_size, config.patch_size))
        if config.residual:
            skip = entered.data[..., : config.output_channels]
            field = add(field, entered.like(skip))
        y = resampling.leave(field, config, interpolate=False).astype(x.dtype)
        return resampling.correct(config, x, y, context)


def _block(config: SwinConfig, stage: int) -> blocks.SwinBlock:
    channels, heads = config.embed_dim, config.num_heads[stage]
    attention = blocks.ShiftedWindowAttention(
        channels,
        heads,
        config.window,
        qkv=blocks.BiasedQueryKeyValue(channels, heads, key_bias=True),
        bias=blocks.PairBias(heads, config.window) if config.rel_pos else None,
        columns_meet=True,
        attn_drop=config.attn_drop_rate,
        proj_drop=config.proj_drop_rate,
    )
    return blocks.SwinBlock(
        attention,
        int(channels * config.mlp_ratio),
        config.shift,
        norm_scale=1.0 if config.init_values is None else config.init_values,
        drop_path=config.drop_path(stage),
    )
