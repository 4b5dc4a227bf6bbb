"""Embedding of patches of the grid."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from credit_jax.nn.context import Context
from credit_jax.nn.layers import LayerNorm
from credit_jax.nn.parameters import parameter
from credit_jax.ops.dense import add_bias
from credit_jax.ops.padding import IntPair
from credit_jax.parallel.domain.conv import conv2d_field
from credit_jax.parallel.params.initializers import torch_uniform
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.scopes import EMBEDDING


class PatchEmbed(nnx.Module):
    """CREDIT's CubeEmbedding: convolution with stride = kernel = patch, LayerNorm.

    The kernel covers all frames, which are folded into the channels (channel * time).

    Args of the constructor:
        channel_in: number of channels of a frame.
        channel_out: number of channels of the embedding.
        frames: number of frames.
        patch: rows and columns of a patch.
    """

    def __init__(
        self, channel_in: int, channel_out: int, frames: int, patch: IntPair
    ) -> None:
        self.patch = patch
        self.proj = _PatchProjection(channel_in, channel_out, (frames, *patch))
        self.norm = LayerNorm(channel_out)

    @jax.named_scope(EMBEDDING)
    def __call__(self, field: Field, context: Context) -> Field:
        field = self.proj(field, self.patch)
        return field.like(self.norm(field.data))


class _PatchProjection(nnx.Module):
    """Projection of patches; its kernel (time, height, width, in, out) is a Conv3d's.

    It has no spectral norm.
    """

    def __init__(self, channel_in: int, channel_out: int, size: Sequence[int]) -> None:
        fan_in = channel_in * size[0] * size[1] * size[2]
        init = torch_uniform(fan_in)
        shape = (size[0], size[1], size[2], channel_in, channel_out)
        dims = (None, None, None, "conv_in", "conv_out")
        self.kernel = parameter(init, shape, dims)
        self.bias = parameter(init, (channel_out,), ("conv_out",))

    def __call__(self, field: Field, patch: IntPair) -> Field:
        *_, channel_out = self.kernel[...].shape
        kernel = jnp.moveaxis(self.kernel[...], 0, 3)
        kernel = kernel.reshape(*patch, -1, channel_out)
        field = conv2d_field(field, kernel, stride=patch)
        return field.like(add_bias(field.data, self.bias[...]))
