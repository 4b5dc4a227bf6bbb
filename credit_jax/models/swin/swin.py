"""CREDIT's `swin` (models/swin.py): Swin Transformer V2 CR on one grid of patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
from flax import nnx
from jaxtyping import Array, Float
from pydantic import PositiveInt

from credit_jax.config.messages import divisors
from credit_jax.models.common.array_specs import FieldSpec, InputSpec
from credit_jax.models.common.config import MAX_DEPTH
from credit_jax.models.common.entry import correct, enter, leave
from credit_jax.models.common.geometry import Geometry, StageGeometry
from credit_jax.models.common.padded_config import (
    PaddedConfig,
    padding_problems,
    repeated,
)
from credit_jax.models.common.variables import VariableKeys
from credit_jax.models.swin.attention import BiasedQueryKeyValue, ShiftedWindowAttention
from credit_jax.models.swin.blocks import PLAIN, SHIFTED, Mlp, SwinBlock
from credit_jax.models.swin.position_bias import PairBias
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Conv, LayerNorm, matmul
from credit_jax.nn.parameters import parameter, stack_blocks
from credit_jax.nn.run_blocks import run_block, scan_blocks
from credit_jax.ops.padding import IntPair
from credit_jax.parallel.domain.rearrange import add, unpatch_field
from credit_jax.parallel.domain.windows import window_layout
from credit_jax.parallel.params.initializers import Initializer, torch_uniform
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.rows.reshard import WINDOWS, reshard
from credit_jax.parallel.scopes import BLOCKS, DECODER, EMBEDDING

Both = Annotated[tuple[PositiveInt, PositiveInt], repeated(2)]

IGNORED = "CREDIT's swin ignores it"


class SwinConfig(VariableKeys, PaddedConfig):
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

    ignored: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            (
                "drop_rate",
                "extra_norm_period",
                "extra_norm_stage",
                "sequential_attn",
                "global_pool",
                "weight_init",
                "interp",
                "in_chans",
                "out_chans",
                "image_height",
                "image_width",
                "pad_lat",
                "pad_lon",
            ),
            IGNORED,
        ),
        "checkpoint_stages": "see trainer.activation_checkpoint",
    }

    type: Literal["swin"] = "swin"
    img_size: tuple[PositiveInt, PositiveInt] = (224, 224)
    patch_size: PositiveInt = 4
    window_size: Both | None = None
    img_window_ratio: PositiveInt = 32
    frames: PositiveInt = 1
    embed_dim: PositiveInt = 96
    depths: tuple[PositiveInt, ...] = (2, 2, 6, 2)
    num_heads: tuple[PositiveInt, ...] = (3, 6, 12, 24)
    mlp_ratio: float = 4.0
    init_values: float | None = 0.0
    proj_drop_rate: float = 0.0
    attn_drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    full_pos_embed: bool = False
    rel_pos: bool = True
    residual: bool = False
    use_spectral_norm: bool = False

    def without_effect(self) -> dict[str, str]:
        """Returns keys without effect; see `StrictModel.without_effect`."""
        notes = super().without_effect()
        if self.frames == 3:
            notes["frames"] = (
                "3: the model takes the mean of the first two frames and does not see "
                "the last, as in CREDIT"
            )
        return notes

    @property
    def inputs(self) -> Mapping[str, InputSpec]:
        """See `ModelConfig.inputs`."""
        return {"x": FieldSpec(self.input_channels, self.frames, *self.img_size)}

    @property
    def output(self) -> FieldSpec:
        """See `ModelConfig.output`."""
        return FieldSpec(self.output_channels, 1, *self.img_size)

    @property
    def image_height(self) -> int:
        """Number of rows of the grid."""
        return self.img_size[0]

    @property
    def image_width(self) -> int:
        """Number of columns of the grid."""
        return self.img_size[1]

    @property
    def padded(self) -> IntPair:
        """Rows and columns of the padded grid."""
        lat, lon = self.pads
        return self.img_size[0] + sum(lat), self.img_size[1] + sum(lon)

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

    def geometry(self) -> Geometry:
        """Returns grid sizes along the layers; valid only if `problems()` is empty."""
        stages = tuple(
            StageGeometry(
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
        return Geometry(grid, self.padded, self.patches, stages, self.padded, grid)

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """Returns errors of the sizes, with arithmetic and values that would fit.

        Args:
            tensor: tensor-parallel degree.
            domain: domain-parallel degree; any degree works, but shards may be idle.
        """
        rates = ("proj_drop_rate", "attn_drop_rate", "drop_path_rate")
        return [
            *self.channel_problems(),
            *self.rate_problems(*rates),
            *padding_problems(self.padding, *self.img_size),
            *self._grid_problems(),
            *self._head_problems(tensor),
            *self.post_problems(),
        ]

    def _grid_problems(self) -> list[str]:
        """Returns errors of patches, windows, frames and channels of `swin`."""
        problems = []
        patch = self.patch_size
        for name, size, count, window in zip(
            ("rows", "columns"), self.padded, self.patches, self.window, strict=True
        ):
            if size % patch:
                problems.append(
                    f"model.patch_size is {patch}, which does not divide the {size} "
                    f"{name} of the padded grid; would fit: {divisors(size)}"
                )
            elif window < 2:
                problems.append(
                    f"the windows have {window} {name}: {size} points // "
                    f"img_window_ratio {self.img_window_ratio}, or model.window_size; "
                    "expected at least 2"
                )
            elif count % window:
                problems.append(
                    f"the {count} {name} of patches are not whole windows of {window} "
                    f"({size} points // img_window_ratio {self.img_window_ratio}, or "
                    f"model.window_size); would fit: {divisors(count)}"
                )
        if self.frames > 3:
            problems.append(
                f"model.frames is {self.frames}; expected 1 to 3: the model takes the "
                "mean of two frames, and CREDIT fails where a third and a fourth make "
                "another mean"
            )
        if self.residual and self.input_channels < self.output_channels:
            problems.append(
                f"model.residual adds the input to the output, but they have "
                f"{self.input_channels} and {self.output_channels} channels; expected "
                "at least as many channels in as out"
            )
        return problems

    def _head_problems(self, tensor: int) -> list[str]:
        """Returns errors of the stages of `swin`.

        Args:
            tensor: tensor-parallel degree.
        """
        depths, heads, dim = self.depths, self.num_heads, self.embed_dim
        if len(depths) != len(heads) or not depths:
            return [
                f"model.depths has {len(depths)} entries and model.num_heads "
                f"{len(heads)}; expected as many, one for each stage"
            ]
        problems = [
            f"model.num_heads has {number}, which does not divide embed_dim {dim}; "
            f"would fit: {divisors(dim)}"
            for number in dict.fromkeys(heads)
            if dim % number
        ]
        if max(depths) > MAX_DEPTH:
            problems.append(
                f"model.depths has {max(depths)}; expected at most {MAX_DEPTH}"
            )
        if self.mlp_ratio * dim < 1:
            problems.append(
                f"model.mlp_ratio is {self.mlp_ratio}; expected more than 0"
            )
        return problems or [
            f"model.num_heads has {number}, which tensor = {tensor} of the "
            f"parallelism does not divide; would fit: {divisors(number)}"
            for number in dict.fromkeys(heads)
            if number % tensor
        ]


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
        self.kernel = parameter(
            torch_uniform(channel_in),
            (channel_in, channel_out),
            ("embed", "embed"),
            matrix_out=(1,),
        )

    @jax.named_scope(DECODER)
    def __call__(self, field: Field, context: Context) -> Field:
        return field.like(matmul(field.data, self.kernel[...]))


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
    ) -> Float[Array, "batch channel_out time_out rows lon"]:
        """Predicts from local samples and rows, in block layout over the domain axis.

        Args:
            inputs: "x", (batch, channel, time, rows, lon).
            context: context of the forward pass.

        Differs from CREDIT: padding, with which CREDIT's model fails, is added before
        the patch embedding and cropped after unpatching, as its source intends.
        """
        config, x = self.config, inputs["x"]
        cast = context.precision.cast(x)
        fold = "mean" if config.frames > 1 else "channel"
        entered = enter(cast, config.img_size[0], context, config.padding, fold)
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
                    variants=(PLAIN, SHIFTED),
                )
        field = run_block(context, self.head, field)
        field = unpatch_field(field, (config.patch_size, config.patch_size))
        if config.residual:
            skip = entered.data[..., : config.output_channels]
            field = add(field, entered.like(skip))
        y = leave(field, config, interpolate=False).astype(x.dtype)
        return correct(config, x, y, context)


def _block(config: SwinConfig, stage: int) -> SwinBlock:
    channels, heads = config.embed_dim, config.num_heads[stage]
    attention = ShiftedWindowAttention(
        channels,
        heads,
        config.window,
        qkv=BiasedQueryKeyValue(channels, heads, key_bias=True),
        bias=PairBias(heads, config.window) if config.rel_pos else None,
        columns_meet=True,
        attn_drop=config.attn_drop_rate,
        proj_drop=config.proj_drop_rate,
    )
    hidden = int(channels * config.mlp_ratio)
    return SwinBlock(
        attention,
        Mlp(channels, hidden, dropout=config.proj_drop_rate),
        channels,
        config.shift,
        norm_scale=1.0 if config.init_values is None else config.init_values,
        drop_path=config.drop_path(stage),
    )
