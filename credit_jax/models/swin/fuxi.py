"""CREDIT's `fuxi`, `dscale` and `wrf`: embedding of patches, U-Transformer, unpatching.

`dscale` (models/dscale_wrf.py) is fuxi (models/fuxi.py) modulated by an encoding of
time; `wrf` (models/swin_wrf.py) is that of a region, with the fields around it added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import PositiveInt

from credit_jax.config import StrictModel
from credit_jax.config.base import Unavailable
from credit_jax.models.common.config import (
    FieldSpec,
    FlatPaddingKeys,
    InputSpec,
    Prediction,
    Rate,
    Side,
    SummedChannels,
    VariableKeys,
    VectorSpec,
    ignored_by,
    register_model,
)
from credit_jax.models.common.resampling import PatchEmbed, enter
from credit_jax.models.swin.u_transformer import (
    Film,
    UTransformerConfig,
    UTransformerModel,
    frame_problems,
)
from credit_jax.nn.context import Context
from credit_jax.nn.run_blocks import run_block
from credit_jax.parallel.domain.rearrange import add
from credit_jax.state_dict.key_table import key_table
from credit_jax.state_dict.torch_model import TorchModel

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
    blocks = key_table(_BLOCK, "u_transformer.layer.blocks.{d}", "u_transformer/blocks")
    rules = (*key_table(table), *blocks, *key_table(later), *(_FILM if film else ()))
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

    image_height: Side = 640
    image_width: Side = 1280
    patch_height: PositiveInt = 16
    patch_width: PositiveInt = 16
    frames: PositiveInt = 2
    frame_patch_size: PositiveInt = 2
    dim: PositiveInt = 1536
    proj_drop: Rate = 0.0
    attn_drop: Rate = 0.0


class FuxiConfig(VariableKeys, FlatPaddingKeys, GridKeys):
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


@register_model(FuxiConfig, _torch_model("cube_embedding"))
class Fuxi(UTransformerModel):
    """The Fuxi model; see `FuxiConfig` for its keys."""

    config: GridKeys
    film: Film | None = None

    def __init__(self, config: GridKeys) -> None:
        super().__init__(config)
        self.cube_embedding = PatchEmbed(
            config.x.channels, config.dim, config.frame_patch_size, config.patch
        )

    def __call__(self, inputs: Mapping[str, Any], context: Context) -> Prediction:
        """Predicts from local samples and rows, in blocks over the domain axis."""
        config, cast, x = self.config, context.precision.cast, inputs["x"]
        seen = cast(x)[:, :, : config.frame_patch_size]
        field = enter(seen, config.image_height, context, config.padding)
        field = run_block(context, self.cube_embedding, field)
        if self.film is not None:
            field = run_block(context, self.film, field, cast(inputs["x_extra"]))
        return self.predict(field, x, context)


class DscaleConfig(SummedChannels, GridKeys):
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

    ignored: ClassVar[Mapping[str, str]] = ignored_by(
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
    def inputs(self) -> Mapping[str, InputSpec]:
        """See `ModelConfig.inputs`."""
        grid = self.image_height, self.image_width
        return {
            "x": FieldSpec(self.input_channels, self.frames, *grid),
            "x_extra": VectorSpec(self.time_encode_dim),
        }


@register_model(DscaleConfig, _torch_model("cube_embedding", film=True))
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

    image_height: Side
    image_width: Side
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


class WRFConfig(SummedChannels, UTransformerConfig):
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

    ignored: ClassVar[Mapping[str, str]] = ignored_by(
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
    def inputs(self) -> Mapping[str, InputSpec]:
        """See `ModelConfig.inputs`."""
        inside, outside = self.param_interior, self.param_outside
        grid = inside.image_height, inside.image_width
        around = outside.image_height, outside.image_width
        return {
            "x": FieldSpec(self.input_channels, inside.frames, *grid),
            "x_outside": FieldSpec(outside.variables, outside.frames, *around),
            "x_extra": VectorSpec(self.time_encode_dim),
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
                f"{outside.image_height} x {outside.image_width} points, "
                f"param_interior {self.patches[0]} x {self.patches[1]} of "
                f"{self.padded[0]} x {self.padded[1]} with padding; they are added, so "
                "they must be equal"
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


@register_model(WRFConfig, _torch_model(*WRF_EMBEDDINGS, film=True))
class WRF(UTransformerModel):
    """The WRF model; see `WRFConfig` for its keys."""

    config: WRFConfig

    def __init__(self, config: WRFConfig) -> None:
        super().__init__(config)
        inside, outside = config.param_interior, config.param_outside
        self.cube_embedding_inside = PatchEmbed(
            config.input_channels, inside.dim, inside.frame_patch_size, config.patch
        )
        self.cube_embedding_outside = PatchEmbed(
            outside.variables,
            outside.dim,
            outside.frame_patch_size,
            (outside.patch_height, outside.patch_width),
        )
        self.film = Film(config.time_encode_dim, inside.dim)

    def __call__(self, inputs: Mapping[str, Any], context: Context) -> Prediction:
        """Predicts from local samples and rows, in blocks over the domain axis."""
        config, cast, x = self.config, context.precision.cast, inputs["x"]
        inside, outside = config.param_interior, config.param_outside
        seen = cast(x)[:, :, : inside.frame_patch_size]
        field = enter(seen, inside.image_height, context, config.padding)
        field = run_block(context, self.cube_embedding_inside, field)
        seen = cast(inputs["x_outside"])[:, :, : outside.frame_patch_size]
        around = enter(seen, outside.image_height, context)
        around = run_block(context, self.cube_embedding_outside, around)
        around = run_block(context, self.film, around, cast(inputs["x_extra"]))
        return self.predict(add(field, around), x, context)
