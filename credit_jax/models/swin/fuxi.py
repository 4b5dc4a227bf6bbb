"""FuXi's U-Transformer, and its models: CREDIT's `fuxi`, `dscale` and `wrf`.

Embedding of patches; downsampling, Swin Transformer V2 blocks, upsampling; unpatching.
`dscale` (models/dscale_wrf.py) is fuxi (models/fuxi.py) modulated by an encoding of
time; `wrf` (models/swin_wrf.py) is that of a region, with the fields around it added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float
from pydantic import PositiveInt

from credit_jax.config import StrictModel
from credit_jax.config.base import Unavailable
from credit_jax.models.common import config as common
from credit_jax.models.common import resampling
from credit_jax.models.swin import blocks
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Conv, Linear
from credit_jax.nn.parameters import parameter, stack_blocks
from credit_jax.nn.run_blocks import run_block, scan_blocks
from credit_jax.ops.dense import add_bias
from credit_jax.ops.space_to_depth import IntPair
from credit_jax.parallel.compiler import BLOCKS, DECODER, EMBEDDING
from credit_jax.parallel.domain import rearrange
from credit_jax.parallel.domain.windows import window_layout
from credit_jax.parallel.params.spec import torch_uniform
from credit_jax.parallel.rows.layout import PADDING, Field
from credit_jax.state_dict.key_table import key_table
from credit_jax.state_dict.torch_model import TorchModel

# Hidden units of the feed-forward layers divided by channels.
EXPANSION = 4


class UTransformerConfig(common.PaddedConfig):
    """Keys shared by fuxi, wrf and dscale, with CREDIT's defaults.

    A subclass defines the channels, and what its `sizes` have: image_height,
    image_width, patch_height, patch_width, frames, frame_patch_size, dim; proj_drop and
    attn_drop, where they are not 0.

    Attributes:
        num_groups: number of groups of the norms of down- and upsampling; an integer
            for both.
        num_heads, window_size, depth: number of heads, tokens along each side of a
            window, and number of the blocks of Swin Transformer V2.
        use_spectral_norm: whether 2D convolutions and linear layers have spectral norm.
        interp: whether to interpolate the output to the grid.
        drop_path: probability of dropping a branch in training.
        train_qkv: whether to train the matrices of queries, keys and values if spectral
            norm is on. CREDIT does not: timm reads the weight of the layer without
            calling it, so it is neither divided nor trained. With True it is trained
            but not divided, so weights give the same prediction. Not in CREDIT.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        "num_groups": 4,
        "num_heads": 4,
        "depth": 2,
        "window_size": 4,
    }

    num_groups: common.Both = (32, 32)
    num_heads: PositiveInt = 8
    depth: common.Depth = 48
    window_size: common.Both = (7, 7)
    use_spectral_norm: bool = True
    interp: bool = True
    drop_path: common.Rate = 0.0
    train_qkv: bool = False

    def without_effect(self) -> dict[str, str]:
        """Returns keys without effect; see `StrictModel.without_effect`."""
        notes, keys = super().without_effect(), self.sizes
        if keys.frame_patch_size < keys.frames < 2 * keys.frame_patch_size:
            notes["frames"] = (
                f"{keys.frames}: a patch has {keys.frame_patch_size}, and the model "
                "does not see the others, as in CREDIT"
            )
        if self.train_qkv and not self.use_spectral_norm:
            notes["train_qkv"] = "without spectral norm all is trained"
        return notes

    @property
    def sizes(self) -> Any:
        """What has the grid, the patches, the frames and `dim` of the model as keys."""
        return self

    @property
    def patch(self) -> IntPair:
        """Rows and columns of a patch."""
        return self.sizes.patch_height, self.sizes.patch_width

    @property
    def output(self) -> common.FieldSpec:
        """See `ModelConfig.output`."""
        keys: Any = self
        grid = self.sizes.image_height, self.sizes.image_width
        return common.FieldSpec(keys.output_channels, 1, *grid)

    @property
    def patches(self) -> IntPair:
        """Rows and columns of patches."""
        padded, patch = self.padded, self.patch
        return padded[0] // patch[0], padded[1] // patch[1]

    @property
    def tokens(self) -> IntPair:
        """Rows and columns of tokens, before padding to complete windows."""
        rows, columns = self.patches
        return -(-rows // 2), -(-columns // 2)

    @property
    def token_pads(self) -> tuple[IntPair, IntPair]:
        """Zeros (low, high) of rows and of columns that complete the windows."""
        missing = [-size % self.window_size[0] for size in self.tokens]
        rows, columns = ((m // 2, m - m // 2) for m in missing)
        return rows, columns

    @property
    def padded_tokens(self) -> IntPair:
        """Rows and columns of tokens, padded to complete windows."""
        lat, lon = self.token_pads
        return self.tokens[0] + sum(lat), self.tokens[1] + sum(lon)

    def geometry(self) -> common.Geometry:
        """Returns grid sizes along the layers; valid only if `problems()` is empty."""
        patch, dim = self.patch, self.sizes.dim
        stage = common.StageGeometry(
            *self.padded_tokens,
            dim,
            self.depth,
            self.num_heads,
            dim // self.num_heads,
            self.window_size[0],
            self.window_size[0],
            attentions=1,
        )
        rows, columns = self.tokens
        decoded = 2 * rows * patch[0], 2 * columns * patch[1]
        lat, lon = self.pads
        cropped = decoded[0] - sum(lat), decoded[1] - sum(lon)
        grid = self.output.grid
        output = grid if self.interp else cropped
        return common.Geometry(
            grid, self.padded, self.patches, (stage,), decoded, output
        )

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`."""
        keys, dim = self.sizes, self.sizes.dim
        problems = [
            *super().problems(),
            *frame_problems(keys.frames, keys.frame_patch_size),
        ]
        for name, size, side in zip(
            ("patch_height", "patch_width"), self.padded, self.patch, strict=True
        ):
            # CREDIT's U-Transformer fails where half of the patches is rounded up.
            tokens, expected = -(-(size // side) // 2), round(size / side / 2)
            if size < side:
                problems.append(
                    f"model.{name} is {side}, more than the {size} points of the "
                    "padded grid; use smaller patches"
                )
            elif tokens != expected:
                fits = [
                    more
                    for more in range(size, size + 4 * side, side)
                    if -(-(more // side) // 2) == round(more / side / 2)
                ]
                problems.append(
                    f"model.{name} is {side}: half of the {size // side} patches is "
                    f"{tokens}, but CREDIT expects round({size} / {side} / 2) = "
                    f"{expected} and fails; pad to {fits[0]} points"
                )
        if self.window_size[0] != self.window_size[1]:
            problems.append(
                f"model.window_size is {list(self.window_size)}; expected equal sides: "
                "CREDIT attends in squares of the first"
            )
        if self.window_size[0] < 2:
            problems.append(
                f"model.window_size is {self.window_size[0]}; expected at least 2: the "
                "position bias of CREDIT divides by window_size - 1"
            )
        counts = [("num_heads", self.num_heads)]
        counts += [("num_groups", groups) for groups in dict.fromkeys(self.num_groups)]
        for name, count in counts:
            problems += common.divisor_problems(name, count, dim, "model.dim")
        yield from problems
        if not problems:
            output, grid = self.geometry().output, self.geometry().grid
            if output != grid:
                yield (
                    f"model.interp is false and patches make {output[0]} x {output[1]} "
                    f"points of the {grid[0]} x {grid[1]} of the grid; set interp: "
                    "true, or choose patches and padding of which an even number fills "
                    "the grid"
                )


def frame_problems(frames: int, cube: int) -> Iterator[str]:
    """Yields an error if the frames of the input do not make exactly one patch."""
    if frames // cube != 1:
        yield (
            f"model.frames is {frames} and model.frame_patch_size {cube}; expected one "
            f"patch of frames: frame_patch_size from {frames // 2 + 1} to {frames}"
        )


class ResidualDownBlock(resampling.Residual):
    """Halves the grid, rounded up, then two residual layers of convolution and norm."""

    def __init__(self, channels: int, num_groups: int) -> None:
        super().__init__(channels, num_groups)
        self.conv = Conv(channels, channels, 3, stride=2, padding=1)

    @jax.named_scope(EMBEDDING)
    def __call__(self, field: Field, context: Context) -> Field:
        field = self.conv(field)
        return rearrange.add(field, self.residual(field))


class UTransformer(nnx.Module):
    """CREDIT's UTransformer."""

    def __init__(self, config: UTransformerConfig, channels: int) -> None:
        self.config = config
        self.down = ResidualDownBlock(channels, config.num_groups[0])
        if config.depth:
            self.blocks = stack_blocks(lambda: _block(config, channels), config.depth)
        self.up = resampling.ResidualUpBlock(
            2 * channels, channels, config.num_groups[1]
        )

    def __call__(self, field: Field, context: Context) -> Field:
        config = self.config
        lat, lon = config.token_pads
        field = skip = run_block(context, self.down, field)
        with jax.named_scope(EMBEDDING):
            # Zeros complete the windows, on the layout of windows.
            height, window = config.padded_tokens[0], config.window_size[0]
            out = window_layout(field.layout, height, window)
            for dim, (low, high) in zip(
                rearrange.lat_lon_dims(field), (lat, lon), strict=True
            ):
                tokens = range(rearrange.dim_size(field, dim))
                index = [PADDING] * low + [*tokens] + [PADDING] * high
                field = rearrange.select(field, dim, index, out=out)
        if config.depth:
            with jax.named_scope(BLOCKS):
                field = scan_blocks(
                    context,
                    self.blocks,
                    field,
                    config.depth,
                    variants=(blocks.PLAIN, blocks.SHIFTED),
                )
        with jax.named_scope(DECODER):
            field = rearrange.crop_globe(field, lat=lat, lon=lon, out=skip.layout)
        return run_block(context, self.up, rearrange.join(skip, field))


def _block(config: UTransformerConfig, channels: int) -> blocks.SwinBlock:
    heads, window = config.num_heads, config.window_size[0]
    attention = blocks.ShiftedWindowAttention(
        channels,
        heads,
        (window, window),
        qkv=blocks.BiasedQueryKeyValue(
            channels,
            heads,
            key_bias=False,
            trained=config.train_qkv or not config.use_spectral_norm,
            divided=False,
        ),
        bias=blocks.OffsetBias(heads, (window, window)),
        attn_drop=getattr(config, "attn_drop", 0.0),
        proj_drop=getattr(config, "proj_drop", 0.0),
    )
    # No shift along a dim of one window.
    rows, columns = (
        0 if size == window else window // 2 for size in config.padded_tokens
    )
    hidden, drop_path = EXPANSION * channels, (config.drop_path,) * config.depth
    return blocks.SwinBlock(attention, hidden, (rows, columns), drop_path=drop_path)


class PatchHead(nnx.Module):
    """Maps each token to the values of all points of its patch."""

    def __init__(self, channel_in: int, channel_out: int) -> None:
        self.linear = Linear(channel_in, channel_out)

    @jax.named_scope(DECODER)
    def __call__(self, field: Field, context: Context) -> Field:
        return field.like(self.linear(field.data))


class Film(nnx.Module):
    """Feature-wise modulation: scale and shift of channels, linear in a vector."""

    # It has no spectral norm: CREDIT adds the layer after applying it to the others.

    def __init__(self, size: int, channels: int) -> None:
        init = torch_uniform(size)
        self.kernel = parameter(init, (size, 2 * channels), (None, "embed"))
        self.bias = parameter(init, (2 * channels,), ("embed",))

    @jax.named_scope(EMBEDDING)
    def __call__(
        self, field: Field, vector: Float[Array, "batch size"], context: Context
    ) -> Field:
        modulation = add_bias(vector @ self.kernel[...], self.bias[...])
        scale, shift = (
            part[:, None, None] for part in jnp.split(modulation, 2, axis=-1)
        )
        return field.like(scale * field.data + shift)


class UTransformerModel(nnx.Module):
    """Base class of models with a U-Transformer, without the patch embedding."""

    def __init__(self, config: UTransformerConfig) -> None:
        self.config = config
        sizes = config.sizes
        rows, columns = self.patch = config.patch
        self.u_transformer = UTransformer(config, sizes.dim)
        self.head = PatchHead(sizes.dim, config.output.channels * rows * columns)

    def predict(
        self, field: Field, x: common.Frames, context: Context
    ) -> common.Prediction:
        """Predicts from embedded patches."""
        config = self.config
        field = self.u_transformer(field, context)
        field = rearrange.unpatch_field(
            run_block(context, self.head, field), self.patch
        )
        y = resampling.leave(field, config, interpolate=config.interp).astype(x.dtype)
        return resampling.correct(config, x, y, context)


# wrf embeds the region and its surroundings apart.
WRF_EMBEDDINGS = ("cube_embedding_inside", "cube_embedding_outside")

_BLOCK = """
    attn.logit_scale       attention/logit_scale           h 1 1 -> h
    attn.q_bias            attention/qkv/q_bias            (h d) -> h d
    attn.v_bias            attention/qkv/v_bias            (h d) -> h d
    attn.cpb_mlp.0         attention/position_bias/hidden  linear
    attn.cpb_mlp.2.weight  attention/position_bias/out     o i -> i o
    attn.qkv.weight        attention/qkv/kernel            (n h d) i -> i n h d
    attn.proj              attention/proj                  from_heads
    norm1                  norm_0                          norm
    mlp.fc1                feed_forward/fc1                linear
    mlp.fc2                feed_forward/fc2                linear
    norm2                  norm_1                          norm
"""
_FILM = key_table("film film linear")


def _torch_model(*embeddings: str, film: bool = False) -> TorchModel:
    """CREDIT's names of a model with these embeddings, which may be modulated."""

    def block_names(config: UTransformerConfig) -> list[str]:
        # The output of "film" is the modulated field in credit_jax, but the modulating
        # vector in CREDIT. The changed name is no module, so it is not compared.
        first = [*embeddings, *(["film, applied"] if film else [])]
        layer = ["u_transformer.layer"] if config.depth else []
        return [*first, "u_transformer.down", *layer, "u_transformer.up", "fc"]

    rows = "\n".join(f"{name} {name} patch_embedding" for name in embeddings)
    table = f"""
        {rows}
        u_transformer.down.conv  u_transformer/down/conv  conv
        u_transformer.down       u_transformer/down       residual
    """
    later = """
        u_transformer.up.conv  u_transformer/up/up  transposed_conv
        u_transformer.up       u_transformer/up     residual
        fc                     head/linear          linear
    """
    swin = key_table(_BLOCK, "u_transformer.layer.blocks.{d}", "u_transformer/blocks")
    rules = (*key_table(table), *swin, *key_table(later), *(_FILM if film else ()))
    return TorchModel(rules, block_names)


class GridKeys(UTransformerConfig):
    """Keys of fuxi and dscale, with CREDIT's defaults; see `UTransformerConfig`.

    Attributes:
        image_height, image_width: grid of input and output.
        patch_height, patch_width: rows and columns of a patch.
        frames: number of time steps of the input.
        frame_patch_size: number of frames of a patch; `frames` must make one patch.
        dim: number of channels of all fields.
        proj_drop, attn_drop: dropout rates of projections and attention weights.
    """

    image_height: common.Side = 640
    image_width: common.Side = 1280
    patch_height: PositiveInt = 16
    patch_width: PositiveInt = 16
    frames: PositiveInt = 2
    frame_patch_size: PositiveInt = 2
    dim: PositiveInt = 1536
    proj_drop: common.Rate = 0.0
    attn_drop: common.Rate = 0.0


class FuxiConfig(common.VariableKeys, common.FlatPaddingKeys, GridKeys):
    """Constructor keys of CREDIT's Fuxi, with its defaults; see `GridKeys`."""

    small_keys: ClassVar[Mapping[str, Any]] = {
        **UTransformerConfig.small_keys,
        "num_groups": 2,
        "num_heads": 2,
        "patch_height": 4,
        "patch_width": 4,
        "dim": 8,
    }

    ignored: ClassVar[Mapping[str, str]] = {
        "output_frames": "CREDIT's fuxi ignores it",
        "noise_latent_dim": "only use_noise reads it",
        "noise_factor": "only use_noise reads it",
        "noise_scheduler": "only use_noise reads it",
    }
    unavailable: ClassVar[Mapping[str, Unavailable]] = {
        "use_noise": Unavailable(
            "CREDIT's own fuxi fails with it (its noise layer takes no scheduler)",
            harmless=(False,),
        ),
        "freeze": Unavailable(
            "it freezes all but the layers of noise, which do not work in CREDIT: "
            "nothing is left to train",
            harmless=(False,),
        ),
    }

    type: Literal["fuxi"] = "fuxi"
    input_only_channels: int = 0


@common.register_model(FuxiConfig, _torch_model("cube_embedding"))
class Fuxi(UTransformerModel):
    """The Fuxi model; see `FuxiConfig` for its keys."""

    config: GridKeys
    film: Film | None = None

    def __init__(self, config: GridKeys) -> None:
        super().__init__(config)
        self.cube_embedding = resampling.PatchEmbed(
            config.x.channels, config.dim, config.frame_patch_size, config.patch
        )

    def __call__(
        self, inputs: Mapping[str, Any], context: Context
    ) -> common.Prediction:
        """Predicts from local samples and rows, in blocks over the domain axis."""
        config, cast, x = self.config, context.precision.cast, inputs["x"]
        seen = cast(x)[:, :, : config.frame_patch_size]
        field = resampling.enter(seen, config.image_height, context, config.padding)
        field = run_block(context, self.cube_embedding, field)
        if self.film is not None:
            field = run_block(context, self.film, field, cast(inputs["x_extra"]))
        return self.predict(field, x, context)


class DscaleConfig(common.SummedChannels, GridKeys):
    """Constructor keys of CREDIT's DscaleTransformer; see `GridKeys`.

    Attributes:
        total_input_channels, total_target_channels: number of channels of a frame of
            input and output.
        time_encode_dim: length of the input "x_extra", such as sines of the hour.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        **UTransformerConfig.small_keys,
        "dim": 16,
    }
    small_is_padded: ClassVar[bool] = False

    ignored: ClassVar[Mapping[str, str]] = common.ignored_by(
        "dscale",
        "channels surface_channels input_only_channels output_only_channels levels "
        "output_frames pad_lat pad_lon",
    )

    input_terms: ClassVar = ("total_input_channels",)
    output_terms: ClassVar = ("total_target_channels",)

    type: Literal["dscale"] = "dscale"
    total_input_channels: PositiveInt = 50
    total_target_channels: PositiveInt = 80
    time_encode_dim: PositiveInt = 4

    @property
    def inputs(self) -> Mapping[str, common.InputSpec]:
        """See `ModelConfig.inputs`."""
        grid = self.image_height, self.image_width
        return {
            "x": common.FieldSpec(self.input_channels, self.frames, *grid),
            "x_extra": common.VectorSpec(self.time_encode_dim),
        }


@common.register_model(DscaleConfig, _torch_model("cube_embedding", film=True))
class Dscale(Fuxi):
    """The Dscale model; see `DscaleConfig` for its keys."""

    def __init__(self, config: DscaleConfig) -> None:
        super().__init__(config)
        self.film = Film(config.time_encode_dim, config.dim)


class OutsideConfig(StrictModel):
    """`param_outside`: the fields around the region. Every key is required.

    Attributes:
        image_height, image_width: size of their grid.
        patch_height, patch_width: rows and columns of a patch.
        levels, channels: number of levels, and of 3D variables.
        surface_channels: number of 2D variables.
        frames: number of time steps, which must make one patch.
        frame_patch_size: number of frames of a patch.
        dim: number of channels of the embedding.
    """

    image_height: common.Side
    image_width: common.Side
    patch_height: PositiveInt
    patch_width: PositiveInt
    levels: int
    channels: int
    surface_channels: int
    frames: PositiveInt
    frame_patch_size: PositiveInt
    dim: PositiveInt

    @property
    def variables(self) -> int:
        """Number of channels of a frame."""
        return self.channels * self.levels + self.surface_channels


class InteriorConfig(OutsideConfig):
    """`param_interior`: the fields of the region. Every key is required.

    Attributes:
        input_only_channels, output_only_channels: number of 2D variables of the input
            only, and of the output only.
    """

    input_only_channels: int
    output_only_channels: int


class WRFConfig(common.SummedChannels, UTransformerConfig):
    """Constructor keys of CREDIT's WRFTransformer; see `UTransformerConfig`.

    Attributes:
        param_interior: the region, which is predicted.
        param_outside: the fields around the region.
        time_encode_dim: length of the input "x_extra", an encoding of time.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        **UTransformerConfig.small_keys,
        "param_interior": {"image_height": 32, "image_width": 64, "dim": 16},
        "param_outside": {"image_height": 8, "image_width": 16, "dim": 16},
    }

    ignored: ClassVar[Mapping[str, str]] = common.ignored_by(
        "wrf", "proj_drop attn_drop output_frames pad_lat pad_lon"
    )

    input_terms: ClassVar = (
        "param_interior.channels param_interior.levels",
        "param_interior.surface_channels",
        "param_interior.input_only_channels",
    )
    output_terms: ClassVar = (*input_terms[:2], "param_interior.output_only_channels")

    type: Literal["wrf"] = "wrf"
    param_interior: InteriorConfig
    param_outside: OutsideConfig
    time_encode_dim: PositiveInt = 12

    @property
    def sizes(self) -> InteriorConfig:
        """See `UTransformerConfig.sizes`."""
        return self.param_interior

    @property
    def inputs(self) -> Mapping[str, common.InputSpec]:
        """See `ModelConfig.inputs`."""
        inside, outside = self.param_interior, self.param_outside
        grid = inside.image_height, inside.image_width
        around = outside.image_height, outside.image_width
        return {
            "x": common.FieldSpec(self.input_channels, inside.frames, *grid),
            "x_outside": common.FieldSpec(outside.variables, outside.frames, *around),
            "x_extra": common.VectorSpec(self.time_encode_dim),
        }

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`."""
        outside = self.param_outside
        patches = (
            outside.image_height // outside.patch_height,
            outside.image_width // outside.patch_width,
        )
        for line in frame_problems(outside.frames, outside.frame_patch_size):
            yield f"{line} (model.param_outside)"
        if patches != self.patches:
            yield (
                f"model.param_outside makes {patches[0]} x {patches[1]} patches of "
                f"{outside.image_height} x {outside.image_width}, param_interior "
                f"{self.patches[0]} x {self.patches[1]} of {self.padded[0]} x "
                f"{self.padded[1]} with padding; expected equal numbers, to add them"
            )
        dim = self.param_interior.dim
        if outside.dim != dim:
            yield (
                f"model.param_outside.dim is {outside.dim} and param_interior.dim "
                f"{dim}; the embeddings are added, so they must be equal"
            )
        if outside.variables < 1:
            yield (
                f"model has {outside.variables} channels around the region; expected "
                "at least 1"
            )
        yield from super().problems()


@common.register_model(WRFConfig, _torch_model(*WRF_EMBEDDINGS, film=True))
class WRF(UTransformerModel):
    """The WRF model; see `WRFConfig` for its keys."""

    config: WRFConfig

    def __init__(self, config: WRFConfig) -> None:
        super().__init__(config)
        inside, outside = config.param_interior, config.param_outside
        self.cube_embedding_inside = resampling.PatchEmbed(
            config.input_channels, inside.dim, inside.frame_patch_size, config.patch
        )
        self.cube_embedding_outside = resampling.PatchEmbed(
            outside.variables,
            outside.dim,
            outside.frame_patch_size,
            (outside.patch_height, outside.patch_width),
        )
        self.film = Film(config.time_encode_dim, inside.dim)

    def __call__(
        self, inputs: Mapping[str, Any], context: Context
    ) -> common.Prediction:
        """Predicts from local samples and rows, in blocks over the domain axis."""
        config, cast, x = self.config, context.precision.cast, inputs["x"]
        inside, outside = config.param_interior, config.param_outside
        seen = cast(x)[:, :, : inside.frame_patch_size]
        field = resampling.enter(seen, inside.image_height, context, config.padding)
        field = run_block(context, self.cube_embedding_inside, field)
        seen = cast(inputs["x_outside"])[:, :, : outside.frame_patch_size]
        around = resampling.enter(seen, outside.image_height, context)
        around = run_block(context, self.cube_embedding_outside, around)
        around = run_block(context, self.film, around, cast(inputs["x_extra"]))
        return self.predict(rearrange.add(field, around), x, context)
