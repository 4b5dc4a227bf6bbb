"""Blocks of a denoising U-Net: residual blocks conditioned on time, attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.nn.context import Context
from credit_jax.nn.layers import Conv, Linear, drop_units
from credit_jax.nn.parameters import parameter
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
        if channel_in != channel_out:
            self.skip = conv(channel_in, channel_out, 1)
        else:
            self.skip = None

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
        memory = self.memory[...]
        attend = full_attention if self.full else linear_attention
        query, key, value = split_heads(joined, 3, self.heads)
        seen = attend(query, key, value, memory[0], memory[1])
        out = merge_heads(seen).data @ self.to_out[...]
        out = field.like(add_bias(out, self.to_out_bias[...]))
        if self.out_norm is not None:
            out = self.out_norm(out)
        return field.like(field.data + out.data)


class PeriodicConv(nnx.Module):
    """A 3 x 3 convolution, periodic in longitude, reflected at the poles."""

    def __init__(self, channel_in: int, channel_out: int) -> None:
        self.conv = conv(channel_in, channel_out, 3)

    def __call__(self, field: Field, context: Context) -> Field:
        del context
        field = periodic_conv2d_field(field, self.conv.kernel[...], out=field.layout)
        return field.like(add_bias(field.data, self.conv.bias[...]))


class Convolution(nnx.Module):
    """A convolution as a block: the first, the last, or one that halves the grid."""

    def __init__(
        self, channel_in: int, channel_out: int, size: int = 2, stride: int = 1
    ) -> None:
        self.conv = conv(channel_in, channel_out, size, stride=stride)

    def __call__(self, field: Field, context: Context) -> Field:
        del context
        return self.conv(field)


class Upsample(nnx.Module):
    """Doubles the grid by nearest interpolation, then a 3 x 3 convolution."""

    def __init__(self, channel_in: int, channel_out: int) -> None:
        self.conv = conv(channel_in, channel_out, 3)

    def __call__(self, field: Field, context: Context) -> Field:
        del context
        rows, columns = field.layout.size, field.data.shape[2]
        return self.conv(resize_nearest(field, (2 * rows, 2 * columns)))
