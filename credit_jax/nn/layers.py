"""Layers: parameters bound to the array and field functions they are used with."""

from __future__ import annotations

import math

from flax import nnx
from jaxtyping import Array, Float

from credit_jax.nn.parameters import parameter
from credit_jax.ops.conv import Padding
from credit_jax.ops.norm import layer_norm
from credit_jax.parallel.domain.conv import conv2d_field
from credit_jax.parallel.domain.norm import group_norm
from credit_jax.parallel.initialisers import Initialiser, constant, torch_uniform
from credit_jax.parallel.layouts import Field, Layout


class LayerNorm(nnx.Module):
    """Normalisation over channels; biased variance, epsilon inside the root."""

    def __init__(self, channels: int) -> None:
        self.scale = parameter(constant(1.0), (channels,), ("embed",))
        self.bias = parameter(constant(0.0), (channels,), ("embed",))

    def __call__(
        self, x: Float[Array, "*batch channel"]
    ) -> Float[Array, "*batch channel"]:
        return layer_norm(x, self.scale[...], self.bias[...])


class GroupNorm(nnx.Module):
    """torch.nn.GroupNorm on fields, statistics over all shards."""

    def __init__(self, num_groups: int, channels: int) -> None:
        self.num_groups = num_groups
        self.scale = parameter(constant(1.0), (channels,), ("embed",))
        self.bias = parameter(constant(0.0), (channels,), ("embed",))

    def __call__(self, field: Field) -> Field:
        return group_norm(
            field, self.scale[...], self.bias[...], num_groups=self.num_groups
        )


class Linear(nnx.Module):
    """x @ kernel + bias over the last dim; the same on every device."""

    def __init__(self, channel_in: int, channel_out: int) -> None:
        init = torch_uniform(channel_in)
        self.kernel = parameter(
            init, (channel_in, channel_out), ("embed", "embed"), matrix_out=(1,)
        )
        self.bias = parameter(init, (channel_out,), ("embed",))

    def __call__(
        self, x: Float[Array, "*batch channel_in"]
    ) -> Float[Array, "*batch channel_out"]:
        bias = self.bias[...]
        return x @ self.kernel[...] + bias.reshape((1,) * (x.ndim - 1) + bias.shape)


class Conv(nnx.Module):
    """Two-dimensional convolution of a field, NHWC, with bias."""

    def __init__(
        self,
        channel_in: int,
        channel_out: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: Padding | int = 0,
        kernel_init: Initialiser | None = None,
        bias_init: Initialiser | None = None,
    ) -> None:
        shape = (kernel_size, kernel_size, channel_in, channel_out)
        default = torch_uniform(math.prod(shape[:3]))
        self.stride = (stride, stride)
        side = (padding, padding) if isinstance(padding, int) else None
        self.padding: Padding = (side, side) if side else padding  # pyright: ignore
        self.kernel = parameter(
            kernel_init or default,
            shape,
            (None, None, "conv_in", "conv_out"),
            matrix_out=(3,),
        )
        self.bias = parameter(bias_init or default, (channel_out,), ("conv_out",))

    def __call__(self, field: Field, out: Layout | None = None) -> Field:
        field = conv2d_field(
            field, self.kernel[...], stride=self.stride, padding=self.padding, out=out
        )
        return field.like(field.data + self.bias[...].reshape(1, 1, 1, -1))
