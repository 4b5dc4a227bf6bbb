"""CREDIT's `fuxi` (models/fuxi.py): cubes of frames, a U-Transformer, patches again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import jax
from flax import nnx
from jaxtyping import Array, Float
from pydantic import PositiveInt

from credit_jax.config.base import Unavailable
from credit_jax.models.common.array_specs import FieldSpec
from credit_jax.models.common.entry import correct, enter, leave
from credit_jax.models.common.geometry import Geometry, StageGeometry
from credit_jax.models.common.grid_config import GridConfig
from credit_jax.models.common.padding import (
    flat_padding_problems,
    padding_problems,
    repeated,
)
from credit_jax.models.common.patch_embed import PatchEmbed
from credit_jax.models.swin import checks
from credit_jax.models.swin.u_transformer import StageSizes, UTransformer
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Linear
from credit_jax.parallel.domain.shuffle import unpatch_field
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.scopes import DECODER

Both = Annotated[tuple[PositiveInt, PositiveInt], repeated(2)]

IGNORED = "CREDIT's fuxi ignores it"


class FuxiConfig(GridConfig):
    """Constructor keys of CREDIT's Fuxi, with its defaults; see `GridConfig`.

    Attributes:
        frame_patch_size: frames of a patch; `frames` make one patch.
        dim: channels of all fields.
        num_groups: of the group norms on the way down and up; one number for both.
        num_heads, window_size, depth: of the blocks of Swin Transformer V2.
        proj_drop, attn_drop, drop_path: rates in training.
        train_qkv: whether the matrices of queries, keys and values are trained where
            spectral norm is on. CREDIT does not train them: timm reads the weight of
            the layer without calling it, so that it is neither divided nor trained.
            True trains it; it is not divided either, so that weights give the same
            prediction. Not in CREDIT.
        pad_lat, pad_lon: of old configs; an error without `padding_conf`.
    """

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
    patch_height: PositiveInt = 16
    patch_width: PositiveInt = 16
    input_only_channels: int = 0
    frame_patch_size: PositiveInt = 2
    dim: PositiveInt = 1536
    num_groups: Both = (32, 32)
    num_heads: PositiveInt = 8
    depth: int = 48
    window_size: Both = (7, 7)
    proj_drop: float = 0.0
    attn_drop: float = 0.0
    drop_path: float = 0.0
    train_qkv: bool = False
    pad_lat: int | None = None
    pad_lon: int | None = None

    def without_effect(self) -> dict[str, str]:
        """Keys that change nothing; see `GridConfig`."""
        found = super().without_effect()
        if self.frame_patch_size < self.frames < 2 * self.frame_patch_size:
            found["frames"] = (
                f"{self.frames}: a patch has {self.frame_patch_size}, and the model "
                "does not see the others, as in CREDIT"
            )
        if self.train_qkv and not self.use_spectral_norm:
            found["train_qkv"] = "without spectral norm all is trained"
        if self.padding_conf is not None:
            flat = [k for k in ("pad_lat", "pad_lon") if getattr(self, k) is not None]
            found |= dict.fromkeys(flat, "padding_conf is there and counts")
        return found

    @property
    def output(self) -> FieldSpec:
        """See `ModelConfig.output`."""
        grid = self.image_height, self.image_width
        return FieldSpec(self.output_channels, 1, *grid)

    @property
    def padded(self) -> tuple[int, int]:
        """Rows and columns of the grid with its padding."""
        lat, lon = self.pads
        return self.image_height + sum(lat), self.image_width + sum(lon)

    @property
    def patches(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        padded = self.padded
        return padded[0] // self.patch[0], padded[1] // self.patch[1]

    @property
    def stage(self) -> StageSizes:
        """Sizes of the U-Transformer."""
        rows, columns = self.patches
        as_in_credit = self.use_spectral_norm and not self.train_qkv
        return StageSizes(
            self.dim,
            self.num_groups,
            self.num_heads,
            self.window_size[0],
            self.depth,
            (-(-rows // 2), -(-columns // 2)),
            trained_qkv=not as_in_credit,
            proj_drop=self.proj_drop,
            attn_drop=self.attn_drop,
            drop_path=self.drop_path,
        )

    def geometry(self) -> Geometry:
        """Grid sizes along the layers; valid only if `problems()` is empty."""
        sizes = self.stage
        height, width = sizes.padded
        stage = StageGeometry(
            height,
            width,
            self.dim,
            self.depth,
            self.num_heads,
            self.dim // self.num_heads,
            sizes.window,
            sizes.window,
            attentions=1,
        )
        rows, columns = sizes.tokens
        decoded = 2 * rows * self.patch[0], 2 * columns * self.patch[1]
        lat, lon = self.pads
        cropped = decoded[0] - sum(lat), decoded[1] - sum(lon)
        grid = self.image_height, self.image_width
        output = grid if self.interp else cropped
        return Geometry(grid, self.padded, self.patches, (stage,), decoded, output)

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """Errors of the sizes, with the arithmetic and the values that would fit.

        Args:
            tensor: tensor-parallel degree.
            domain: domain-parallel degree; any degree works, some shards may idle.
        """
        found = [
            *flat_padding_problems(self.padding_conf, self.pad_lat, self.pad_lon),
            *self.channel_problems(),
            *checks.frame_problems(self.frames, self.frame_patch_size),
            *checks.rate_problems(self, ("proj_drop", "attn_drop", "drop_path")),
            *padding_problems(self.padding, self.image_height, self.image_width),
            *checks.patch_problems(
                self.padded, self.patch, ("patch_height", "patch_width")
            ),
        ]
        if self.window_size[0] != self.window_size[1]:
            found.append(
                f"model.window_size is {list(self.window_size)}; expected equal sides: "
                "CREDIT attends in squares of the first"
            )
        found += checks.stage_problems(self.stage, tensor)
        if not found and not self.interp:
            found += self._crop_problems()
        return [*found, *self.post_problems()]

    def _crop_problems(self) -> list[str]:
        """The error of an output that is not on the grid, and not interpolated."""
        geometry = self.geometry()
        if geometry.output == geometry.grid:
            return []
        return [
            f"model.interp is false and patches make {geometry.output[0]} x "
            f"{geometry.output[1]} points of the {geometry.grid[0]} x "
            f"{geometry.grid[1]} of the grid; set interp: true, or choose patches and "
            "padding of which an even number fills the grid"
        ]


class PatchHead(nnx.Module):
    """The values of all points of each patch."""

    def __init__(self, channel_in: int, channel_out: int) -> None:
        self.linear = Linear(channel_in, channel_out)

    @jax.named_scope(DECODER)
    def __call__(self, field: Field, context: Context) -> Field:
        return field.like(self.linear(field.data))


class Fuxi(nnx.Module):
    """The whole model; see `FuxiConfig` for its keys."""

    def __init__(self, config: FuxiConfig) -> None:
        self.config = config
        rows, columns = config.patch
        self.cube_embedding = PatchEmbed(
            config.input_channels, config.dim, config.frame_patch_size, config.patch
        )
        self.u_transformer = UTransformer(config.stage)
        self.head = PatchHead(config.dim, config.output_channels * rows * columns)

    def __call__(
        self, inputs: Mapping[str, Any], context: Context
    ) -> Float[Array, "batch channel_out time_out rows lon"]:
        """Predicts from the input "x"; rows are in block layout over the domain axis.

        Differs from CREDIT: nothing.
        """
        config, x = self.config, inputs["x"]
        seen = context.precision.cast(x)[:, :, : config.frame_patch_size]
        field = enter(seen, config.image_height, context, config.padding)
        field = context.run(self.cube_embedding, field)
        field = self.u_transformer(field, context)
        field = unpatch_field(context.run(self.head, field), config.patch)
        y = leave(field, config).astype(x.dtype)
        return correct(config, x, y, context)
