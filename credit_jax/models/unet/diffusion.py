"""CREDIT's `unet-diffusion` (models/unet_diffusion.py): a U-Net that removes noise.

A prediction is a sample of the diffusion process of `model.diffusion`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from pydantic import BeforeValidator, PositiveInt
from pydantic import Field as Key

from credit_jax.config.base import Unavailable
from credit_jax.models.common import config as common
from credit_jax.models.common.resampling import enter, leave
from credit_jax.models.diffusion.process import NOISED, TIME, DiffusionKeys
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Conv, Linear, drop_units
from credit_jax.nn.parameters import parameter
from credit_jax.nn.run_blocks import run_block
from credit_jax.ops.activations import gelu
from credit_jax.ops.dense import add_bias
from credit_jax.parallel.compiler import ATTENTION, NORM
from credit_jax.parallel.domain.attention import (
    full_attention,
    linear_attention,
    merge_heads,
    split_heads,
)
from credit_jax.parallel.domain.conv import periodic_conv2d_field
from credit_jax.parallel.domain.pool import resize_nearest
from credit_jax.parallel.domain.rearrange import join
from credit_jax.parallel.params.spec import Initializer, constant, torch_uniform
from credit_jax.parallel.rows.layout import Field
from credit_jax.state_dict.key_table import Rule, below, key_table
from credit_jax.state_dict.torch_model import TorchModel

# Number of memory tokens of every attention.
NUM_MEMORY = 4

Vector = Float[Array, "batch channel"]


def conv(channel_in: int, channel_out: int, size: int, *, stride: int = 1) -> Conv:
    """Builds a convolution without spectral norm; odd sizes keep the grid."""
    padding = size // 2 if size % 2 else 0
    return Conv(
        channel_in,
        channel_out,
        size,
        stride=stride,
        padding=padding,
        spectral_norm=False,
    )


class RMSNorm(nnx.Module):
    """x / max(|x|, 1e-12) * scale * sqrt(channels), with the norm over channels."""

    def __init__(self, channels: int) -> None:
        self.scale = parameter(constant(1.0), (channels,), ("embed",))

    @jax.named_scope(NORM)
    def __call__(self, field: Field) -> Field:
        x = field.data
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        squares = jnp.maximum((wide * wide).sum(-1, keepdims=True), 1e-24)
        normal = (wide * jax.lax.rsqrt(squares)).astype(x.dtype)
        scale = self.scale[...] * x.shape[-1] ** 0.5
        return field.like(normal * scale[None, None, None])


class TimeEmbedding(nnx.Module):
    """Sinusoidal embedding of the diffusion step, then two linear layers."""

    def __init__(self, channels: int, theta: float) -> None:
        half = channels // 2
        step = np.float32(-np.log(theta) / (half - 1))
        exponents = np.arange(half, dtype=np.float32) * step
        frequencies = np.exp(exponents.astype(np.float64)).astype(np.float32)
        self.frequencies = tuple(map(float, frequencies))
        self.first = Linear(channels, 4 * channels)
        self.second = Linear(4 * channels, 4 * channels)

    def __call__(self, time: Float[Array, "batch 1"], context: Context) -> Vector:
        del context
        kernel = self.first.kernel[...]
        wide = jnp.promote_types(time.dtype, jnp.float32)
        phase = time.astype(wide) * jnp.asarray(self.frequencies, wide)[None]
        waves = jnp.concatenate([jnp.sin(phase), jnp.cos(phase)], -1)
        return self.second(gelu(self.first(waves.astype(kernel.dtype))))


class ResidualBlock(nnx.Module):
    """(conv, norm, scale and shift by time, SiLU), (conv, norm, SiLU), residual."""

    def __init__(
        self, channel_in: int, channel_out: int, time: int, dropout: float = 0.0
    ) -> None:
        self.dropout = dropout
        self.time = Linear(time, 2 * channel_out)
        self.conv_1 = conv(channel_in, channel_out, 3)
        self.norm_1 = RMSNorm(channel_out)
        self.conv_2 = conv(channel_out, channel_out, 3)
        self.norm_2 = RMSNorm(channel_out)
        changes = channel_in != channel_out
        self.skip = conv(channel_in, channel_out, 1) if changes else None

    def __call__(
        self, field: Field, other: Field | None, time: Vector, context: Context
    ) -> Field:
        """Applies the block."""
        if other is not None:
            field = join(field, other)
        layout = field.layout
        scale, shift = jnp.split(self.time(jax.nn.silu(time)), 2, -1)
        x = self.norm_1(self.conv_1(field, layout))
        x = x.data * (scale[:, None, None] + 1) + shift[:, None, None]
        x = jax.nn.silu(x)
        x = drop_units(x, field, context, self.dropout, x.shape[-1])
        x = self.norm_2(self.conv_2(field.like(x), layout))
        skip = field if self.skip is None else self.skip(field, layout)
        return field.like(jax.nn.silu(x.data) + skip.data)


class GlobalAttention(nnx.Module):
    """Attention between all points, with residual."""

    def __init__(self, channels: int, heads: int, dim_head: int, *, full: bool) -> None:
        self.full, self.heads = full, heads
        hidden = heads * dim_head
        init = Initializer("normal", 1.0)
        self.norm = RMSNorm(channels)
        dims = (None, None, None, None)
        self.memory = parameter(init, (2, NUM_MEMORY, heads, dim_head), dims)
        self.to_qkv = parameter(
            torch_uniform(channels), (channels, 3 * hidden), ("embed", "embed")
        )
        out = torch_uniform(hidden)
        self.to_out = parameter(out, (hidden, channels), ("embed", "embed"))
        self.to_out_bias = parameter(out, (channels,), ("embed",))
        self.out_norm = None if full else RMSNorm(channels)

    @jax.named_scope(ATTENTION)
    def __call__(self, field: Field, context: Context) -> Field:
        del context
        normal = self.norm(field)
        joined = normal.like(normal.data @ self.to_qkv[...])
        attend = full_attention if self.full else linear_attention
        query, key, value = split_heads(joined, 3, self.heads)
        seen = attend(query, key, value, self.memory[...])
        out = merge_heads(seen).data @ self.to_out[...]
        out = field.like(add_bias(out, self.to_out_bias[...]))
        if self.out_norm is not None:
            out = self.out_norm(out)
        return field.like(field.data + out.data)


class Convolution(nnx.Module):
    """A convolution as a block: the first, the last, or one that halves the grid."""

    # With `doubles` it follows a nearest interpolation to twice the grid.

    def __init__(
        self,
        channel_in: int,
        channel_out: int,
        size: int = 2,
        stride: int = 1,
        *,
        doubles: bool = False,
    ) -> None:
        self.doubles = doubles
        self.conv = conv(channel_in, channel_out, size, stride=stride)

    def __call__(self, field: Field, context: Context) -> Field:
        del context
        rows, columns = field.layout.size, field.data.shape[2]
        if self.doubles:
            field = resize_nearest(field, (2 * rows, 2 * columns))
        return self.conv(field)


class PeriodicConv(Convolution):
    """A 3 x 3 convolution, periodic in longitude, reflected at the poles."""

    def __call__(self, field: Field, context: Context) -> Field:
        del context
        field = periodic_conv2d_field(field, self.conv.kernel[...], out=field.layout)
        return field.like(add_bias(field.data, self.conv.bias[...]))


periodic = partial(PeriodicConv, size=3)

Positives = Annotated[tuple[PositiveInt, ...], Key(min_length=1)]


class Level(NamedTuple):
    """Sizes of a level: channels in and out, and those of its attention."""

    channel_in: int
    channel_out: int
    heads: int
    dim_head: int
    full: bool


class DiffusionUNetConfig(DiffusionKeys, common.VariableKeys, common.PaddedConfig):
    """Constructor keys of CREDIT's UnetDiffusion, with its defaults.

    Differs from CREDIT: `frames` defaults to 1, as CREDIT's default of 2 fails, and
    `padding_conf` may be absent.

    Attributes:
        image_height, image_width: grid of input and output.
        init_dim: number of channels of the first convolution; None for `dim[0]`.
        dim: only the first entry is used; level i has dim[0] * dim_mults[i] channels.
        dim_mults: one factor for each level; every level but the last halves the grid.
        sinusoidal_pos_emb_theta: theta of `TimeEmbedding`.
        dropout: dropout rate of residual blocks.
        attn_dim_head, attn_heads: number of channels of a head, and of heads, for each
            level; an integer for all levels.
        full_attn: whether the attention of each level is full or linear; None for full
            attention on the last level only. A string means full attention on all
            levels, as in CREDIT, even the string "None" of its example config, as YAML
            has no None.
    """

    small_keys: ClassVar[Mapping[str, Any]] = {
        "dim": [8],
        "dim_mults": [1, 2, 4],
        "attn_dim_head": 4,
        "attn_heads": 2,
    }

    ignored: ClassVar[Mapping[str, str]] = common.ignored_by(
        "unet-diffusion",
        "depth conditional_dimensions learned_variance learned_sinusoidal_dim "
        "frame_patch_size",
        dim_head="; see attn_dim_head",
        use_spectral_norm=": there is none",
        interp=": the output is on the grid",
        patch_height=": there are no patches",
        patch_width=": there are no patches",
        output_frames=": the output has one frame",
        flash_attn=": the implementation is chosen by the device",
    )
    unavailable: ClassVar[Mapping[str, Unavailable]] = dict.fromkeys(
        ("learned_sinusoidal_cond", "random_fourier_features"),
        Unavailable("CREDIT's process refuses it; remove the key", harmless=(False,)),
    )

    type: Literal["unet-diffusion"] = "unet-diffusion"
    image_height: common.Side = 640
    image_width: common.Side = 1280
    frames: Literal[1] = 1
    init_dim: PositiveInt | None = None
    dim: Positives = (64, 128, 256, 512)
    dim_mults: Positives = (1, 2, 4, 8)
    sinusoidal_pos_emb_theta: float = 10000
    dropout: common.Rate = 0.0
    attn_dim_head: PositiveInt | tuple[PositiveInt, ...] = 32
    attn_heads: PositiveInt | tuple[PositiveInt, ...] = 4
    # Empty and false values are the default, as in CREDIT.
    full_attn: Annotated[
        bool | tuple[bool, ...] | str | None,
        BeforeValidator(lambda value: value or None),
    ] = None

    @property
    def levels_of_grid(self) -> list[Level]:
        """The levels, finest first; valid only if `problems()` is empty."""
        count = len(self.dim_mults)
        last = (False,) * (count - 1) + (True,)
        full = last if self.full_attn is None else self.full_attn
        values: tuple[Any, ...] = (full, self.attn_heads, self.attn_dim_head)
        full, heads, dims = (
            value if isinstance(value, tuple) else (value,) * count for value in values
        )
        first = self.init_dim or self.dim[0]
        widths = [first, *(self.dim[0] * factor for factor in self.dim_mults)]
        return [
            Level(widths[i], widths[i + 1], heads[i], dims[i], bool(full[i]))
            for i in range(count)
        ]

    def without_effect(self) -> dict[str, str]:
        """Returns notes on `post_conf`, `full_attn`, and further entries of `dim`."""
        notes = super().without_effect()
        if isinstance(self.full_attn, str):
            notes["full_attn"] = (
                f"got the string {self.full_attn!r}, which is true, as in CREDIT: "
                "attention between all points on every level; for attention on the "
                "last level alone write null"
            )
        if (
            len(self.dim) > 1
            and self.dim[1:] != type(self).model_fields["dim"].default[1:]
        ):
            notes["dim"] = "only its first entry counts, as in CREDIT; see dim_mults"
        return notes

    def problems(self) -> Iterator[str]:
        """See `ModelConfig.problems`."""
        yield from super().problems()
        if self.gen1_post_conf is not None:
            yield (
                "model.gen1_post_conf: CREDIT's unet-diffusion corrects nothing inside "
                "the model; remove it, and correct samples in postblocks.per_step"
            )
        count = len(self.dim_mults)
        if self.dim[0] < 4 or self.dim[0] % 2:
            yield (
                f"model.dim[0] is {self.dim[0]}; expected an even number of at least "
                "4: half of the embedding of the time are sines, half cosines"
            )
        for key in ("attn_heads", "attn_dim_head", "full_attn"):
            value = getattr(self, key)
            if isinstance(value, tuple) and len(value) != count:
                yield (
                    f"model.{key} has {len(value)} entries; expected one for each of "
                    f"the {count} levels of dim_mults"
                )
        factor = 2 ** (count - 1)
        for name, pad in zip(("height", "width"), self.pads, strict=True):
            size = getattr(self, f"image_{name}")
            padded = size + sum(pad)
            if padded % factor or padded // factor < 2:
                yield (
                    f"model.image_{name} is {padded} with padding; expected a multiple "
                    f"of 2^{count - 1} = {factor}, of at least {2 * factor}: pad to it"
                )


_RESIDUAL = """
    mlp.1          time    linear
    block1.proj    conv_1  conv
    block1.norm    norm_1  rms_norm
    block2.proj    conv_2  conv
    block2.norm    norm_2  rms_norm
    res_conv       skip    conv
"""
_FULL = """
    mem_kv         memory       k h n d -> k n h d
    norm           norm         rms_norm
    to_qkv.weight  to_qkv       o i 1 1 -> i o
    to_out.weight  to_out       o i 1 1 -> i o
    to_out.bias    to_out_bias
"""
# In linear attention tokens are the last dim of the memory.
_LINEAR = """
    mem_kv           memory       k h d n -> k n h d
    norm             norm         rms_norm
    to_qkv.weight    to_qkv       o i 1 1 -> i o
    to_out.0.weight  to_out       o i 1 1 -> i o
    to_out.0.bias    to_out_bias
    to_out.1         out_norm     rms_norm
"""


def _rules() -> Iterator[Rule]:
    yield from key_table("""
        init_conv   entry/conv   conv
        time_mlp.1  time/first   linear
        time_mlp.3  time/second  linear
    """)
    for name, resize in (("downs", "halving"), ("ups", "conv")):
        torch, path = f"{name}.{{i}}", f"{name}/{{i}}"
        yield from key_table(_RESIDUAL, f"{torch}.0", f"{path}/block_1")
        yield from key_table(_RESIDUAL, f"{torch}.1", f"{path}/block_2")
        yield from key_table(_LINEAR, f"{torch}.2", f"{path}/attention")
        yield from key_table(_FULL, f"{torch}.2", f"{path}/full_attention")
        yield from key_table(f"1 resize/conv {resize}", f"{torch}.3", path)
        yield from key_table("conv periodic/conv conv", f"{torch}.3", path)
    yield from key_table(_RESIDUAL, "mid_block1", "middle/0")
    yield from key_table(_FULL, "mid_attn", "middle_attention")
    yield from key_table(_RESIDUAL, "mid_block2", "middle/1")
    yield from key_table(_RESIDUAL, "final_res_block", "final_block")
    yield from key_table("final_conv final/conv conv")


def _block_names(config: DiffusionUNetConfig) -> list[str]:
    # Our output of attention includes the residual, unlike CREDIT's. The changed name
    # is no module, so it is not compared.
    level = ("0", "1", "2, added", "3")
    downs, ups = (
        [f"{kind}.{i}.{name}" for i in range(len(config.dim_mults)) for name in level]
        for kind in ("downs", "ups")
    )
    middle = ["mid_block1", "mid_attn, added", "mid_block2"]
    names = ["init_conv", *downs, *middle, *ups, "final_res_block", "final_conv"]
    return [f"model.{name}" for name in names]


# As its trainer writes them: the buffers of the process, then the network's keys under
# "model.".
DIFFUSION = TorchModel(
    key_table=below("model", _rules()),
    block_names=_block_names,
    # The buffers of the process, which precede the keys of the network.
    constants=lambda config: config.process.tables,
)


@common.register_model(DiffusionUNetConfig, DIFFUSION)
class DiffusionUNet(nnx.Module):
    """The denoising network; see `DiffusionUNetConfig` for its keys."""

    def __init__(self, config: DiffusionUNetConfig) -> None:
        self.config = config
        levels, time = config.levels_of_grid, 4 * config.dim[0]
        residual = partial(ResidualBlock, time=time, dropout=config.dropout)
        first = levels[0].channel_in
        channels = config.input_channels + config.output_channels
        self.entry = Convolution(channels, first, 7)
        self.time = TimeEmbedding(config.dim[0], config.sinusoidal_pos_emb_theta)
        self.downs, self.ups = nnx.List(), nnx.List()
        for level in levels:
            last = level is levels[-1]
            halve = periodic if last else partial(Convolution, stride=2)
            width = level.channel_in
            resize = halve(width, level.channel_out)
            self.downs.append(LevelBlocks(level, residual, width, width, resize))
        for level in reversed(levels):
            upsample = partial(Convolution, size=3, doubles=True)
            double = periodic if level is levels[0] else upsample
            width, wider = level.channel_in, level.channel_out
            resize = double(wider, width)
            self.ups.append(LevelBlocks(level, residual, wider + width, wider, resize))
        widest, last = levels[-1].channel_out, levels[-1]
        self.middle = nnx.List(residual(widest, widest) for _ in range(2))
        self.middle_attention = GlobalAttention(
            widest, last.heads, last.dim_head, full=True
        )
        self.final_block = residual(2 * first, first)
        self.final = Convolution(first, config.output_channels, 1)

    def __call__(
        self, inputs: Mapping[str, Array], context: Context
    ) -> Float[Array, "batch channel_out 1 rows lon"]:
        """Predicts the objective of the process, for local samples and rows."""
        config, cast, condition = self.config, context.precision.cast, inputs["x"]
        x = cast(jnp.concatenate([inputs[NOISED], condition], 1))
        field = enter(x, config.image_height, context, config.padding)
        field = first = run_block(context, self.entry, field)
        time = run_block(context, self.time, inputs[TIME])
        skips: list[Field] = []
        for index, stage in enumerate(self.downs):
            at = context.fold_in(index)
            skips.append(run_block(at, stage.block_1, field, None, time))
            field = run_block(at.fold_in(1), stage.block_2, skips[-1], None, time)
            attention, resize = stage.layers
            skips.append(run_block(at, attention, field))
            field = run_block(at, resize, skips[-1])
        at = context.fold_in(len(self.downs))
        field = run_block(at, self.middle[0], field, None, time)
        field = run_block(at, self.middle_attention, field)
        field = run_block(at.fold_in(1), self.middle[1], field, None, time)
        for index, stage in enumerate(self.ups, len(self.downs) + 1):
            at = context.fold_in(index)
            field = run_block(at, stage.block_1, field, skips.pop(), time)
            field = run_block(at.fold_in(1), stage.block_2, field, skips.pop(), time)
            attention, resize = stage.layers
            field = run_block(at, resize, run_block(at, attention, field))
        at = context.fold_in(2 * len(self.downs) + 1)
        field = run_block(at, self.final_block, field, first, time)
        field = run_block(context, self.final, field)
        return leave(field, config, interpolate=False).astype(condition.dtype)


class LevelBlocks(nnx.Module):
    """The blocks of a level, which the model runs one by one."""

    # Layers of different kinds have different paths, as in the keys of checkpoints.

    def __init__(
        self,
        level: Level,
        residual: Callable[[int, int], ResidualBlock],
        channel_in: int,
        channels: int,
        resize: Convolution,
    ) -> None:
        self.block_1 = residual(channel_in, channels)
        self.block_2 = residual(channel_in, channels)
        sizes = channels, level.heads, level.dim_head
        self.names = (
            "full_attention" if level.full else "attention",
            "periodic" if isinstance(resize, PeriodicConv) else "resize",
        )
        setattr(self, self.names[0], GlobalAttention(*sizes, full=level.full))
        setattr(self, self.names[1], resize)

    @property
    def layers(self) -> tuple[nnx.Module, nnx.Module]:
        """The attention and the last layer."""
        attention, resize = (getattr(self, name) for name in self.names)
        return attention, resize
