"""Attention at the end of CREDIT's UNet blocks (models/unet_attention_modules.py).

Gates multiply each channel or point of a field by a factor in (0, 1).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flax import nnx

from credit_jax.nn.context import Context
from credit_jax.nn.layers import BatchNorm, Linear
from credit_jax.nn.parameters import Parameter, parameter
from credit_jax.ops.activations import neighbor_taps
from credit_jax.parallel.domain.field_attention import (
    CoordinateWeights,
    coordinate_attention,
    efficient_channel_attention,
    scse,
    spatial_attention,
)
from credit_jax.parallel.params.initializers import torch_uniform
from credit_jax.parallel.rows.layout import Field

# The arguments with which CREDIT's crossformer calls the factory of these modules.
REDUCTION = 32
SPATIAL_KERNEL = 7


class ChannelAttention(nnx.Module):
    """CREDIT's ECABlock; its 1-D convolution has no spectral norm."""

    def __init__(self, channels: int) -> None:
        num_taps = neighbor_taps(channels)
        self.taps = parameter(torch_uniform(num_taps), (num_taps,), (None,))

    def __call__(self, field: Field, context: Context) -> Field:
        return efficient_channel_attention(field, self.taps[...])


class SpatialAttention(nnx.Module):
    """CREDIT's LightSpatialAttention."""

    def __init__(self, channels: int) -> None:
        size = SPATIAL_KERNEL
        self.kernel = parameter(
            torch_uniform(2 * size**2),
            (size, size, 2, 1),
            (None, None, None, None),
            matrix_out=(3,),
        )

    def __call__(self, field: Field, context: Context) -> Field:
        return spatial_attention(field, self.kernel[...])


class MixedAttention(nnx.Module):
    """CREDIT's EfficientMixedAttention: channel attention, then spatial attention."""

    def __init__(self, channels: int) -> None:
        self.channels = ChannelAttention(channels)
        self.points = SpatialAttention(channels)

    def __call__(self, field: Field, context: Context) -> Field:
        return self.points(self.channels(field, context), context)


class SCSEAttention(nnx.Module):
    """CREDIT's SCSEAttention: the sum of channel and spatial gates."""

    def __init__(self, channels: int, *, depthwise: bool) -> None:
        hidden = max(channels // REDUCTION, 8)
        self.depthwise = depthwise
        self.squeeze = _matrix(channels, hidden)
        self.expand = _matrix(hidden, channels)
        if depthwise:
            self.scale = _matrix(1, channels)
            self.scaled_points = _matrix(channels, 1)
        else:
            self.points = _matrix(channels, 1)

    def __call__(self, field: Field, context: Context) -> Field:
        if self.depthwise:
            points = self.scaled_points[...][:, 0] * self.scale[...][0]
        else:
            points = self.points[...][:, 0]
        return scse(field, self.squeeze[...], self.expand[...], points)


class CoordinateAttention(nnx.Module):
    """CREDIT's CoordinateAttention: gates of rows and of columns, with a batch norm."""

    def __init__(self, channels: int) -> None:
        hidden = max(8, channels // REDUCTION)
        self.squeeze = Linear(channels, hidden)
        self.norm = BatchNorm(hidden)
        self.lat = Linear(hidden, channels)
        self.lon = Linear(hidden, channels)

    def __call__(self, field: Field, context: Context) -> Field:
        weights = CoordinateWeights(
            self.squeeze.kernel[...],
            self.squeeze.bias[...],
            self.norm.scale[...],
            self.norm.bias[...],
            self.lat.kernel[...],
            self.lat.bias[...],
            self.lon.kernel[...],
            self.lon.bias[...],
        )
        field, after = coordinate_attention(
            field,
            weights,
            self.norm.running,
            training=context.training,
            axes=context.axes.data,
        )
        self.norm.update(after)
        return field


def _matrix(channel_in: int, channel_out: int) -> Parameter:
    """Declares the kernel of a 1 x 1 convolution with spectral norm."""
    return parameter(
        torch_uniform(channel_in),
        (channel_in, channel_out),
        ("embed", "embed"),
        matrix_out=(1,),
    )


# By CREDIT's `attention_type`: number of channels -> module(field, context) -> field.
FIELD_ATTENTION: dict[str, Callable[[int], Any]] = {
    "coordinate": CoordinateAttention,
    "eca": ChannelAttention,
    "spatial": SpatialAttention,
    "mixed": MixedAttention,
    "scse_standard": partial(SCSEAttention, depthwise=False),
    "scse_optimized": partial(SCSEAttention, depthwise=True),
}
