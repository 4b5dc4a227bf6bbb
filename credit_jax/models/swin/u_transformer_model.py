"""Keys and modules shared by the models with a U-Transformer: fuxi, wrf, dscale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    Protocol,
    TypeVar,
    cast,
    runtime_checkable,
)

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float
from pydantic import PositiveInt

from credit_jax.models.common.array_specs import FieldSpec
from credit_jax.models.common.entry import correct, leave
from credit_jax.models.common.geometry import Geometry, StageGeometry
from credit_jax.models.common.padded_config import (
    PaddedConfig,
    padding_problems,
    repeated,
)
from credit_jax.models.swin import checks
from credit_jax.models.swin.u_transformer import UTransformer, UTransformerSizes
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Linear
from credit_jax.nn.parameters import parameter
from credit_jax.nn.run_blocks import run_block
from credit_jax.ops.dense import add_bias
from credit_jax.ops.padding import IntPair
from credit_jax.parallel.domain.rearrange import unpatch_field
from credit_jax.parallel.params.initializers import torch_uniform
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.scopes import DECODER, EMBEDDING

ConfigType = TypeVar("ConfigType", bound="UTransformerConfig")
Both = Annotated[tuple[PositiveInt, PositiveInt], repeated(2)]


@runtime_checkable
class UTransformerKeys(Protocol):
    """What a subclass of `UTransformerConfig` defines, as keys or of other keys."""

    @property
    def image_height(self) -> int:
        """Rows of the grid."""
        ...

    @property
    def image_width(self) -> int:
        """Columns of the grid."""
        ...

    @property
    def patch(self) -> IntPair:
        """Rows and columns of a patch."""
        ...

    @property
    def frames(self) -> int:
        """Frames of the input."""
        ...

    @property
    def frame_patch_size(self) -> int:
        """Frames of a patch."""
        ...

    @property
    def dim(self) -> int:
        """Channels of the U-Transformer."""
        ...

    @property
    def output_channels(self) -> int:
        """Channels of a frame of the output."""
        ...


class UTransformerConfig(PaddedConfig):
    """Keys shared by fuxi, wrf and dscale, with CREDIT's defaults.

    A subclass defines what `UTransformerKeys` has, and the channels of the input.

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

    num_groups: Both = (32, 32)
    num_heads: PositiveInt = 8
    depth: int = 48
    window_size: Both = (7, 7)
    use_spectral_norm: bool = True
    interp: bool = True
    drop_path: float = 0.0
    train_qkv: bool = False

    def without_effect(self) -> dict[str, str]:
        """Returns keys without effect; see `StrictModel.without_effect`."""
        notes, keys = super().without_effect(), _keys(self)
        if keys.frame_patch_size < keys.frames < 2 * keys.frame_patch_size:
            notes["frames"] = (
                f"{keys.frames}: a patch has {keys.frame_patch_size}, and the model "
                "does not see the others, as in CREDIT"
            )
        if self.train_qkv and not self.use_spectral_norm:
            notes["train_qkv"] = "without spectral norm all is trained"
        return notes

    @property
    def dropouts(self) -> tuple[float, float]:
        """Dropout rates of projections, and of attention weights."""
        return 0.0, 0.0

    @property
    def output(self) -> FieldSpec:
        """See `ModelConfig.output`."""
        keys = _keys(self)
        return FieldSpec(keys.output_channels, 1, keys.image_height, keys.image_width)

    @property
    def padded(self) -> IntPair:
        """Rows and columns of the padded grid."""
        lat, lon = self.pads
        return self.output.height + sum(lat), self.output.width + sum(lon)

    @property
    def patches(self) -> IntPair:
        """Rows and columns of patches."""
        padded, patch = self.padded, _keys(self).patch
        return padded[0] // patch[0], padded[1] // patch[1]

    @property
    def stage(self) -> UTransformerSizes:
        """Sizes of the U-Transformer."""
        rows, columns = self.patches
        proj_drop, attn_drop = self.dropouts
        return UTransformerSizes(
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
        """Returns grid sizes along the layers; valid only if `problems()` is empty."""
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
        """Returns errors of the sizes, with arithmetic and values that would fit.

        Args:
            tensor: tensor-parallel degree.
            domain: domain-parallel degree; any degree works, but shards may be idle.
        """
        keys = _keys(self)
        problems = [
            *checks.frame_problems(keys.frames, keys.frame_patch_size),
            *self.rate_problems(*self.rates),
            *padding_problems(self.padding, self.output.height, self.output.width),
            *checks.patch_problems(
                self.padded, keys.patch, ("patch_height", "patch_width")
            ),
        ]
        if self.window_size[0] != self.window_size[1]:
            problems.append(
                f"model.window_size is {list(self.window_size)}; expected equal sides: "
                "CREDIT attends in squares of the first"
            )
        problems += checks.stage_problems(self.stage, tensor)
        if not problems and not self.interp:
            problems += self._crop_problems()
        return [*problems, *self.post_problems()]

    @property
    def rates(self) -> tuple[str, ...]:
        """Names of the keys that are dropout rates."""
        return ("drop_path",)

    def _crop_problems(self) -> list[str]:
        """Returns an error if the output is neither on the grid nor interpolated."""
        geometry = self.geometry()
        if geometry.output == geometry.grid:
            return []
        return [
            f"model.interp is false and patches make {geometry.output[0]} x "
            f"{geometry.output[1]} points of the {geometry.grid[0]} x "
            f"{geometry.grid[1]} of the grid; set interp: true, or choose patches and "
            "padding of which an even number fills the grid"
        ]


def _keys(config: UTransformerConfig) -> UTransformerKeys:
    """Returns the config with the keys that subclasses define."""
    return cast(UTransformerKeys, config)


class PatchHead(nnx.Module):
    """Maps each token to the values of all points of its patch."""

    def __init__(self, channel_in: int, channel_out: int) -> None:
        self.linear = Linear(channel_in, channel_out)

    @jax.named_scope(DECODER)
    def __call__(self, field: Field, context: Context) -> Field:
        return field.like(self.linear(field.data))


class Film(nnx.Module):
    """Feature-wise modulation: scale and shift of channels, linear in a vector.

    It has no spectral norm: CREDIT adds the layer after applying it to the others.
    """

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


class UTransformerModel(nnx.Module, Generic[ConfigType]):
    """Base class of models with a U-Transformer, without the patch embedding."""

    def __init__(self, config: ConfigType) -> None:
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
        """Predicts from embedded patches.

        Args:
            field: (batch, rows, columns, channel), the embedded patches.
            x: (batch, channel, time, rows, lon), input of the model, for corrections.
            context: context of the forward pass.
        """
        config = self.config
        field = self.u_transformer(field, context)
        field = unpatch_field(run_block(context, self.head, field), _keys(config).patch)
        y = leave(field, config, interpolate=config.interp).astype(x.dtype)
        return correct(config, x, y, context)
