"""Keys and parts of the models with a U-Transformer: fuxi, wrf and dscale."""

from __future__ import annotations

from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float
from pydantic import PositiveInt

from credit_jax.models.common.array_specs import FieldSpec
from credit_jax.models.common.entry import correct, leave
from credit_jax.models.common.geometry import Geometry, StageGeometry
from credit_jax.models.common.padded_config import PaddedConfig
from credit_jax.models.common.padding import padding_problems, repeated
from credit_jax.models.swin import checks
from credit_jax.models.swin.u_transformer import StageSizes, UTransformer
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Linear
from credit_jax.nn.parameters import parameter
from credit_jax.ops.affine import add_bias
from credit_jax.ops.padding import Pair
from credit_jax.parallel.domain.shuffle import unpatch_field
from credit_jax.parallel.params.initializers import torch_uniform
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.scopes import DECODER, EMBEDDING

Both = Annotated[tuple[PositiveInt, PositiveInt], repeated(2)]


class UTransformerConfig(PaddedConfig):
    """Keys that fuxi, wrf and dscale share, with CREDIT's defaults.

    A subclass has `image_height`, `image_width`, `patch`, `frames`,
    `frame_patch_size`, `dim`, and channels of input and output.

    Attributes:
        num_groups: of the group norms on the way down and up; one number for both.
        num_heads, window_size, depth: of the blocks of Swin Transformer V2.
        use_spectral_norm: on every 2D convolution and linear layer.
        interp: interpolate the output to the grid.
        drop_path: rate in training.
        train_qkv: whether the matrices of queries, keys and values are trained where
            spectral norm is on. CREDIT does not train them: timm reads the weight of
            the layer without calling it, so that it is neither divided nor trained.
            True trains it; it is not divided either, so that weights give the same
            prediction. Not in CREDIT.
    """

    num_groups: Both = (32, 32)
    num_heads: PositiveInt = 8
    depth: int = 48
    window_size: Both = (7, 7)
    use_spectral_norm: bool = True
    interp: bool = True
    drop_path: float = 0.0
    train_qkv: bool = False

    def without_effect(self) -> dict[str, str]:
        """Keys that change nothing; see `PaddedConfig`."""
        found, keys = super().without_effect(), _keys(self)
        if keys.frame_patch_size < keys.frames < 2 * keys.frame_patch_size:
            found["frames"] = (
                f"{keys.frames}: a patch has {keys.frame_patch_size}, and the model "
                "does not see the others, as in CREDIT"
            )
        if self.train_qkv and not self.use_spectral_norm:
            found["train_qkv"] = "without spectral norm all is trained"
        return found

    @property
    def dropouts(self) -> tuple[float, float]:
        """Rates of outputs of layers, and of attention weights."""
        return 0.0, 0.0

    @property
    def output(self) -> FieldSpec:
        """See `ModelConfig.output`."""
        keys = _keys(self)
        return FieldSpec(keys.output_channels, 1, keys.image_height, keys.image_width)

    @property
    def padded(self) -> Pair:
        """Rows and columns of the grid with its padding."""
        lat, lon = self.pads
        return self.output.height + sum(lat), self.output.width + sum(lon)

    @property
    def patches(self) -> Pair:
        """Rows and columns of patches."""
        padded, patch = self.padded, _keys(self).patch
        return padded[0] // patch[0], padded[1] // patch[1]

    @property
    def stage(self) -> StageSizes:
        """Sizes of the U-Transformer."""
        rows, columns = self.patches
        proj_drop, attn_drop = self.dropouts
        return StageSizes(
            _keys(self).dim,
            self.num_groups,
            self.num_heads,
            self.window_size[0],
            self.depth,
            (-(-rows // 2), -(-columns // 2)),
            trained_qkv=self.train_qkv or not self.use_spectral_norm,
            proj_drop=proj_drop,
            attn_drop=attn_drop,
            drop_path=self.drop_path,
        )

    def geometry(self) -> Geometry:
        """Grid sizes along the layers; valid only if `problems()` is empty."""
        sizes, patch = self.stage, _keys(self).patch
        stage = StageGeometry(
            *sizes.padded,
            sizes.channels,
            self.depth,
            self.num_heads,
            sizes.channels // self.num_heads,
            sizes.window,
            sizes.window,
            attentions=1,
        )
        rows, columns = sizes.tokens
        decoded = 2 * rows * patch[0], 2 * columns * patch[1]
        lat, lon = self.pads
        cropped = decoded[0] - sum(lat), decoded[1] - sum(lon)
        grid = self.output.height, self.output.width
        output = grid if self.interp else cropped
        return Geometry(grid, self.padded, self.patches, (stage,), decoded, output)

    def problems(self, tensor: int = 1, domain: int = 1) -> list[str]:
        """Errors of the sizes, with the arithmetic and the values that would fit.

        Args:
            tensor: tensor-parallel degree.
            domain: domain-parallel degree; any degree works, some shards may idle.
        """
        keys = _keys(self)
        found = [
            *checks.frame_problems(keys.frames, keys.frame_patch_size),
            *checks.rate_problems(self, self.rates),
            *padding_problems(self.padding, self.output.height, self.output.width),
            *checks.patch_problems(
                self.padded, keys.patch, ("patch_height", "patch_width")
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

    @property
    def rates(self) -> tuple[str, ...]:
        """Keys that are rates."""
        return ("drop_path",)

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


def _keys(config: UTransformerConfig) -> Any:
    """The config, whose subclass has more keys."""
    return config


class PatchHead(nnx.Module):
    """The values of all points of each patch."""

    def __init__(self, channel_in: int, channel_out: int) -> None:
        self.linear = Linear(channel_in, channel_out)

    @jax.named_scope(DECODER)
    def __call__(self, field: Field, context: Context) -> Field:
        return field.like(self.linear(field.data))


class Film(nnx.Module):
    """Each channel times one number, plus another, linear functions of a vector.

    CREDIT makes the layer after spectral norm is put on the others.
    """

    def __init__(self, size: int, channels: int) -> None:
        init = torch_uniform(size)
        self.kernel = parameter(init, (size, 2 * channels), (None, "embed"))
        self.bias = parameter(init, (2 * channels,), ("embed",))

    @jax.named_scope(EMBEDDING)
    def __call__(
        self, field: Field, vector: Float[Array, "batch size"], context: Context
    ) -> Field:
        made = add_bias(vector @ self.kernel[...], self.bias[...])
        scale, shift = (part[:, None, None] for part in jnp.split(made, 2, axis=-1))
        return field.like(scale * field.data + shift)


class UTransformerModel(nnx.Module):
    """What follows the embedding of patches."""

    def __init__(self, config: UTransformerConfig) -> None:
        self.config = config
        rows, columns = _keys(config).patch
        channels = config.stage.channels
        self.u_transformer = UTransformer(config.stage)
        self.head = PatchHead(channels, config.output.channels * rows * columns)

    def predict(
        self,
        field: Field,
        x: Float[Array, "batch channel time rows lon"],
        context: Context,
    ) -> Float[Array, "batch channel_out time_out rows lon"]:
        """The prediction of embedded patches; `x` is the input, for corrections."""
        config = self.config
        field = self.u_transformer(field, context)
        field = unpatch_field(context.run(self.head, field), _keys(config).patch)
        y = leave(field, config, interpolate=config.interp).astype(x.dtype)
        return correct(config, x, y, context)
