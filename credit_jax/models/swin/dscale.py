"""CREDIT's `dscale` (models/dscale_wrf.py): fuxi modulated by an encoding of time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from jaxtyping import Array, Float
from pydantic import PositiveInt

from credit_jax.models.common.array_specs import FieldSpec, InputSpec, VectorSpec
from credit_jax.models.common.entry import enter
from credit_jax.models.common.patch_embed import PatchEmbed
from credit_jax.models.swin.u_transformer_model import (
    Film,
    UTransformerConfig,
    UTransformerModel,
)
from credit_jax.nn.context import Context
from credit_jax.nn.run_blocks import run_block

IGNORED = "CREDIT's dscale ignores it"


class DscaleConfig(UTransformerConfig):
    """Constructor keys of CREDIT's DscaleTransformer; see `UTransformerConfig`.

    Attributes:
        image_height, image_width: grid of input and output.
        patch_height, patch_width: rows and columns of a patch.
        total_input_channels, total_target_channels: number of channels of a frame of
            input and output.
        time_encode_dim: length of the input "x_extra", such as sines of the hour.
        frames: number of time steps of the input "x".
        frame_patch_size: number of frames of a patch; `frames` must make one patch.
        dim: number of channels of all fields.
        proj_drop, attn_drop: dropout rates of projections and attention weights.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        **UTransformerConfig.small_keys,
        "dim": 16,
    }
    small_is_padded: ClassVar[bool] = False

    ignored: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (
            "channels",
            "surface_channels",
            "input_only_channels",
            "output_only_channels",
            "levels",
            "output_frames",
            "pad_lat",
            "pad_lon",
        ),
        IGNORED,
    )

    type: Literal["dscale"] = "dscale"
    image_height: PositiveInt = 640
    image_width: PositiveInt = 1280
    patch_height: PositiveInt = 16
    patch_width: PositiveInt = 16
    total_input_channels: PositiveInt = 50
    total_target_channels: PositiveInt = 80
    time_encode_dim: PositiveInt = 4
    frames: PositiveInt = 2
    frame_patch_size: PositiveInt = 2
    dim: PositiveInt = 1536
    proj_drop: float = 0.0
    attn_drop: float = 0.0

    @property
    def input_channels(self) -> int:
        """See `ChannelKeys`."""
        return self.total_input_channels

    @property
    def output_channels(self) -> int:
        """See `ChannelKeys`."""
        return self.total_target_channels

    def channel_sum(self, direction: str) -> str:
        """See `ChannelKeys.channel_sum`."""
        key = {"input": "total_input_channels", "output": "total_target_channels"}
        return f"{key[direction]} {getattr(self, key[direction])}"

    @property
    def inputs(self) -> Mapping[str, InputSpec]:
        """See `ModelConfig.inputs`."""
        grid = self.image_height, self.image_width
        return {
            "x": FieldSpec(self.input_channels, self.frames, *grid),
            "x_extra": VectorSpec(self.time_encode_dim),
        }

    @property
    def patch(self) -> tuple[int, int]:
        """Rows and columns of a patch."""
        return self.patch_height, self.patch_width

    @property
    def dropouts(self) -> tuple[float, float]:
        """See `UTransformerConfig.dropouts`."""
        return self.proj_drop, self.attn_drop

    @property
    def rates(self) -> tuple[str, ...]:
        """See `UTransformerConfig.rates`."""
        return "proj_drop", "attn_drop", "drop_path"


class Dscale(UTransformerModel[DscaleConfig]):
    """The Dscale model; see `DscaleConfig` for its keys."""

    def __init__(self, config: DscaleConfig) -> None:
        super().__init__(config)
        self.cube_embedding = PatchEmbed(
            config.input_channels, config.dim, config.frame_patch_size, config.patch
        )
        self.film = Film(config.time_encode_dim, config.dim)

    def __call__(
        self, inputs: Mapping[str, Any], context: Context
    ) -> Float[Array, "batch channel_out time_out rows lon"]:
        """Predicts from local samples and rows, in block layout over the domain axis.

        Args:
            inputs: "x", (batch, channel, time, rows, lon), and "x_extra", (batch,
                time_encode_dim).
            context: context of the forward pass.
        """
        config = self.config
        x = inputs["x"]
        seen = context.precision.cast(x)[:, :, : config.frame_patch_size]
        field = enter(seen, config.image_height, context, config.padding)
        field = run_block(context, self.cube_embedding, field)
        extra = context.precision.cast(inputs["x_extra"])
        field = run_block(context, self.film, field, extra)
        return self.predict(field, x, context)
