"""CREDIT's `fuxi` (models/fuxi.py): cube embedding, U-Transformer, unpatching."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from jaxtyping import Array, Float
from pydantic import PositiveInt

from credit_jax.config.base import Unavailable
from credit_jax.models.common.entry import enter
from credit_jax.models.common.padded_config import flat_padding_problems
from credit_jax.models.common.patch_embed import PatchEmbed
from credit_jax.models.common.variables import VariableKeys
from credit_jax.models.swin.u_transformer_model import (
    UTransformerConfig,
    UTransformerModel,
)
from credit_jax.nn.context import Context
from credit_jax.nn.run_blocks import run_block

IGNORED = "CREDIT's fuxi ignores it"


class FuxiConfig(VariableKeys, UTransformerConfig):
    """Constructor keys of CREDIT's Fuxi, with its defaults; see `UTransformerConfig`.

    Attributes:
        image_height, image_width: grid of input and output.
        patch_height, patch_width: rows and columns of a patch.
        frames: number of time steps of the input.
        frame_patch_size: number of frames of a patch; `frames` must make one patch.
        dim: number of channels of all fields.
        proj_drop, attn_drop: dropout rates of projections and attention weights.
        pad_lat, pad_lon: padding keys of older configs; an error without
            `padding_conf`, ignored with it.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        **UTransformerConfig.small_keys,
        "num_groups": 2,
        "num_heads": 2,
        "patch_height": 4,
        "patch_width": 4,
        "dim": 8,
    }

    ignored: ClassVar[Mapping[str, str]] = {
        "output_frames": IGNORED,
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
    image_height: PositiveInt = 640
    image_width: PositiveInt = 1280
    patch_height: PositiveInt = 16
    patch_width: PositiveInt = 16
    frames: PositiveInt = 2
    frame_patch_size: PositiveInt = 2
    dim: PositiveInt = 1536
    input_only_channels: int = 0
    proj_drop: float = 0.0
    attn_drop: float = 0.0
    pad_lat: int | None = None
    pad_lon: int | None = None

    def without_effect(self) -> dict[str, str]:
        """Returns keys without effect; see `StrictModel.without_effect`."""
        notes = super().without_effect()
        if self.padding_conf is not None:
            flat = [k for k in ("pad_lat", "pad_lon") if getattr(self, k) is not None]
            notes |= dict.fromkeys(flat, "padding_conf is there and counts")
        return notes

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

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """See `UTransformerConfig.problems`."""
        return [
            *flat_padding_problems(self.padding_conf, self.pad_lat, self.pad_lon),
            *self.channel_problems(),
            *super().problems(tensor, domain),
        ]


class Fuxi(UTransformerModel[FuxiConfig]):
    """The Fuxi model; see `FuxiConfig` for its keys."""

    def __init__(self, config: FuxiConfig) -> None:
        super().__init__(config)
        self.cube_embedding = PatchEmbed(
            config.input_channels, config.dim, config.frame_patch_size, config.patch
        )

    def __call__(
        self, inputs: Mapping[str, Any], context: Context
    ) -> Float[Array, "batch channel_out time_out rows lon"]:
        """Predicts from local samples and rows, in block layout over the domain axis.

        Args:
            inputs: "x", (batch, channel, time, rows, lon).
            context: context of the forward pass.
        """
        config = self.config
        x = inputs["x"]
        seen = context.precision.cast(x)[:, :, : config.frame_patch_size]
        field = enter(seen, config.image_height, context, config.padding)
        field = run_block(context, self.cube_embedding, field)
        return self.predict(field, x, context)
