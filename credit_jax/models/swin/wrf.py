"""CREDIT's `wrf` (models/swin_wrf.py): fuxi of a region with fields around it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from jaxtyping import Array, Float
from pydantic import PositiveInt

from credit_jax.config import StrictModel
from credit_jax.models.common.array_specs import FieldSpec, InputSpec, VectorSpec
from credit_jax.models.common.entry import enter
from credit_jax.models.common.patch_embed import PatchEmbed
from credit_jax.models.swin import checks
from credit_jax.models.swin.u_transformer_model import (
    Film,
    UTransformerConfig,
    UTransformerModel,
)
from credit_jax.nn.context import Context
from credit_jax.nn.run_blocks import run_block
from credit_jax.parallel.domain.rearrange import add

IGNORED = "CREDIT's wrf ignores it"


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

    image_height: PositiveInt
    image_width: PositiveInt
    patch_height: PositiveInt
    patch_width: PositiveInt
    levels: int
    channels: int
    surface_channels: int
    frames: PositiveInt
    frame_patch_size: PositiveInt
    dim: PositiveInt

    @property
    def patch(self) -> tuple[int, int]:
        """Rows and columns of a patch."""
        return self.patch_height, self.patch_width

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


class WRFConfig(UTransformerConfig):
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

    ignored: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("proj_drop", "attn_drop", "output_frames", "pad_lat", "pad_lon"), IGNORED
    )

    type: Literal["wrf"] = "wrf"
    param_interior: InteriorConfig
    param_outside: OutsideConfig
    time_encode_dim: PositiveInt = 12

    @property
    def image_height(self) -> int:
        """Number of rows of the region."""
        return self.param_interior.image_height

    @property
    def image_width(self) -> int:
        """Number of columns of the region."""
        return self.param_interior.image_width

    @property
    def patch(self) -> tuple[int, int]:
        """Rows and columns of a patch of the region."""
        return self.param_interior.patch

    @property
    def frames(self) -> int:
        """Number of time steps of the region."""
        return self.param_interior.frames

    @property
    def frame_patch_size(self) -> int:
        """Number of frames of a patch of the region."""
        return self.param_interior.frame_patch_size

    @property
    def dim(self) -> int:
        """Number of channels of all fields."""
        return self.param_interior.dim

    @property
    def input_channels(self) -> int:
        """Number of channels of a frame of the region."""
        return self.param_interior.variables + self.param_interior.input_only_channels

    @property
    def output_channels(self) -> int:
        """Number of channels of an output frame."""
        return self.param_interior.variables + self.param_interior.output_only_channels

    def channel_sum(self, direction: str) -> str:
        """See `ChannelKeys.channel_sum`."""
        conf = self.param_interior
        only = f"{direction}_only_channels"
        return (
            f"param_interior: channels {conf.channels} x levels {conf.levels} + "
            f"surface_channels {conf.surface_channels} + {only} {getattr(conf, only)}"
        )

    @property
    def inputs(self) -> Mapping[str, InputSpec]:
        """See `ModelConfig.inputs`."""
        outside, grid = self.param_outside, (self.image_height, self.image_width)
        around = outside.image_height, outside.image_width
        return {
            "x": FieldSpec(self.input_channels, self.frames, *grid),
            "x_outside": FieldSpec(outside.variables, outside.frames, *around),
            "x_extra": VectorSpec(self.time_encode_dim),
        }

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """See `UTransformerConfig.problems`."""
        outside = self.param_outside
        patches = (
            outside.image_height // outside.patch_height,
            outside.image_width // outside.patch_width,
        )
        problems = checks.frame_problems(outside.frames, outside.frame_patch_size)
        problems = [f"{line} (model.param_outside)" for line in problems]
        if patches != self.patches:
            problems.append(
                f"model.param_outside makes {patches[0]} x {patches[1]} patches of "
                f"{outside.image_height} x {outside.image_width} points, "
                f"param_interior {self.patches[0]} x {self.patches[1]} of "
                f"{self.padded[0]} x {self.padded[1]} with padding; they are added, so "
                "they must be equal"
            )
        if outside.dim != self.dim:
            problems.append(
                f"model.param_outside.dim is {outside.dim} and param_interior.dim "
                f"{self.dim}; the embeddings are added, so they must be equal"
            )
        if min(self.input_channels, self.output_channels, outside.variables) < 1:
            problems.append(
                f"model has {self.input_channels} channels of the region, "
                f"{outside.variables} around it and {self.output_channels} of the "
                "output; expected at least 1 of each"
            )
        return [*problems, *super().problems(tensor, domain)]


class WRF(UTransformerModel[WRFConfig]):
    """The WRF model; see `WRFConfig` for its keys."""

    def __init__(self, config: WRFConfig) -> None:
        super().__init__(config)
        outside = config.param_outside
        self.cube_embedding_inside = PatchEmbed(
            config.input_channels, config.dim, config.frame_patch_size, config.patch
        )
        self.cube_embedding_outside = PatchEmbed(
            outside.variables, outside.dim, outside.frame_patch_size, outside.patch
        )
        self.film = Film(config.time_encode_dim, config.dim)

    def __call__(
        self, inputs: Mapping[str, Any], context: Context
    ) -> Float[Array, "batch channel_out time_out rows lon"]:
        """Predicts from local samples and rows, in block layout over the domain axis.

        Args:
            inputs: "x" and "x_outside", (batch, channel, time, rows, lon), each on its
                grid, and "x_extra", (batch, time_encode_dim).
            context: context of the forward pass.
        """
        config = self.config
        outside, cast = config.param_outside, context.precision.cast
        x = inputs["x"]
        seen = cast(x)[:, :, : config.frame_patch_size]
        field = enter(seen, config.image_height, context, config.padding)
        field = run_block(context, self.cube_embedding_inside, field)
        seen = cast(inputs["x_outside"])[:, :, : outside.frame_patch_size]
        around = enter(seen, outside.image_height, context)
        around = run_block(context, self.cube_embedding_outside, around)
        around = run_block(context, self.film, around, cast(inputs["x_extra"]))
        return self.predict(add(field, around), x, context)
