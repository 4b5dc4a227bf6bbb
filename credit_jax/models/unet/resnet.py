"""The encoder of a U-Net: torchvision's ResNet and ResNeXt without their head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
from flax import nnx

from credit_jax.nn.context import Context
from credit_jax.nn.layers import BatchNorm, Conv
from credit_jax.nn.parameters import stack_blocks
from credit_jax.nn.run_blocks import run_block, scan_blocks
from credit_jax.parallel.compiler import BLOCKS
from credit_jax.parallel.domain.pool import max_pool2d_field
from credit_jax.parallel.domain.rearrange import add
from credit_jax.parallel.params.spec import Initializer, torch_uniform
from credit_jax.parallel.rows.layout import Field

WIDTHS = (64, 128, 256, 512)


@dataclass(frozen=True)
class ResNetSizes:
    """Sizes of a ResNet."""

    depths: tuple[int, int, int, int]  # number of blocks of each of four layers
    # 1 for blocks of two convolutions; otherwise blocks are bottlenecks of three
    # convolutions, and the last multiplies the channels by this factor.
    expansion: int = 4
    # Number of groups of the middle convolution of a bottleneck, and their width.
    groups: int = 1
    group_width: int = 64

    @property
    def channels(self) -> tuple[int, ...]:
        """Number of channels after the stem and after each layer."""
        return WIDTHS[0], *(width * self.expansion for width in WIDTHS)


RESNETS = {
    "resnet18": ResNetSizes((2, 2, 2, 2), expansion=1),
    "resnet34": ResNetSizes((3, 4, 6, 3), expansion=1),
    "resnet50": ResNetSizes((3, 4, 6, 3)),
    "resnet101": ResNetSizes((3, 4, 23, 3)),
    "resnet152": ResNetSizes((3, 8, 36, 3)),
    "resnext50_32x4d": ResNetSizes((3, 4, 6, 3), groups=32, group_width=4),
    **{
        f"resnext101_32x{width}d": ResNetSizes(
            (3, 4, 23, 3), groups=32, group_width=width
        )
        for width in (4, 8, 16, 32, 48)
    },
}


class ConvNorm(nnx.Module):
    """A convolution without bias that keeps or halves the grid, and a batch norm."""

    def __init__(
        self,
        channel_in: int,
        channel_out: int,
        kernel_size: int,
        stride: int = 1,
        groups: int = 1,
        *,
        kernel_init: Initializer | None = None,
    ) -> None:
        self.conv = Conv(
            channel_in,
            channel_out,
            kernel_size,
            stride=stride,
            padding=kernel_size // 2,
            groups=groups,
            use_bias=False,
            # torch's kaiming_normal_ for ReLU
            kernel_init=kernel_init
            or Initializer("normal", math.sqrt(2.0 / (channel_out * kernel_size**2))),
            spectral_norm=False,
        )
        self.norm = BatchNorm(channel_out)

    def __call__(self, field: Field, context: Context) -> Field:
        return self.norm(self.conv(field), context)


def relu(field: Field) -> Field:
    """Returns max(x, 0)."""
    return field.like(jax.nn.relu(field.data))


class ResNetBlock(nnx.Module):
    """torchvision's BasicBlock, or its Bottleneck."""

    def __init__(
        self, channel_in: int, width: int, stride: int, sizes: ResNetSizes
    ) -> None:
        channels = width * sizes.expansion
        inner = width * sizes.group_width // 64 * sizes.groups
        # Input and output channels, kernel, stride, groups.
        kernels: Sequence[tuple[int, int, int, int, int]] = (
            (channel_in, inner, 1, 1, 1),
            (inner, inner, 3, stride, sizes.groups),
            (inner, channels, 1, 1, 1),
        )
        if sizes.expansion == 1:
            kernels = (channel_in, width, 3, stride, 1), (width, channels, 3, 1, 1)
        self.branch = nnx.List(ConvNorm(*kernel) for kernel in kernels)
        changes = stride != 1 or channel_in != channels
        self.shortcut = ConvNorm(channel_in, channels, 1, stride) if changes else None

    def __call__(self, field: Field, context: Context) -> Field:
        out = field
        for index, layer in enumerate(self.branch):
            out = layer(out if index == 0 else relu(out), context)
        if self.shortcut is not None:
            field = self.shortcut(field, context)
        return relu(add(out, field))


class Stem(nnx.Module):
    """A 7 x 7 convolution that halves the grid, batch norm and ReLU."""

    def __init__(self, channel_in: int) -> None:
        # segmentation_models_pytorch replaces this layer for other numbers of input
        # channels, with torch's default initialization.
        init = torch_uniform(49 * channel_in)
        self.embed = ConvNorm(channel_in, WIDTHS[0], 7, kernel_init=init, stride=2)

    def __call__(self, field: Field, context: Context) -> Field:
        return relu(self.embed(field, context))


class Layer(nnx.Module):
    """Residual blocks; the first may halve the grid, `scan_blocks` runs the others."""

    def __init__(
        self, channel_in: int, width: int, depth: int, stride: int, sizes: ResNetSizes
    ) -> None:
        channels = width * sizes.expansion
        self.num_later = depth - 1
        self.first = ResNetBlock(channel_in, width, stride, sizes)
        self.rest = stack_blocks(
            lambda: ResNetBlock(channels, width, 1, sizes), depth - 1
        )

    def __call__(self, field: Field, context: Context) -> Field:
        field = run_block(context, self.first, field)
        with jax.named_scope(BLOCKS):
            return scan_blocks(context, self.rest, field, self.num_later)


class ResNetEncoder(nnx.Module):
    """Encodes a field to fields on successively coarser grids."""

    def __init__(self, channel_in: int, sizes: ResNetSizes) -> None:
        self.stem = Stem(channel_in)
        width_in = sizes.channels
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            Layer(width_in[i], WIDTHS[i], sizes.depths[i], 1 if i == 0 else 2, sizes)
            for i in range(4)
        )

    def __call__(self, field: Field, context: Context, depth: int) -> list[Field]:
        """Returns `depth` fields, on 1/2, 1/4, ... of the grid."""
        features = [run_block(context, self.stem, field)]
        field = max_pool2d_field(
            features[0], (3, 3), stride=(2, 2), padding=((1, 1), (1, 1))
        )
        layers = self.layer1, self.layer2, self.layer3, self.layer4
        for layer in layers[: depth - 1]:
            field = layer(field, context)
            features.append(field)
        return features
