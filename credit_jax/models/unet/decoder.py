"""The decoder of a U-Net, which doubles the grid and concatenates encoder fields."""

from __future__ import annotations

from collections.abc import Sequence

from flax import nnx

from credit_jax.models.unet.resnet import ConvNorm, relu
from credit_jax.nn.context import Context
from credit_jax.nn.parameters import parameter
from credit_jax.parallel.domain.resize import resize_bilinear, resize_nearest
from credit_jax.parallel.domain.shuffle import join
from credit_jax.parallel.domain.spatial_attention import scse
from credit_jax.parallel.params.initializers import constant, kaiming_uniform
from credit_jax.parallel.rows.layout import Field

REDUCTION = 16


class SCSE(nnx.Module):
    """Gates of channels and of points: segmentation_models_pytorch's SCSEModule."""

    def __init__(self, channels: int) -> None:
        hidden = channels // REDUCTION
        zero = constant(0.0)
        init = kaiming_uniform(channels)
        self.squeeze = parameter(init, (channels, hidden), ("embed", None))
        self.squeeze_bias = parameter(zero, (hidden,), (None,))
        self.expand = parameter(
            kaiming_uniform(hidden), (hidden, channels), (None, "embed")
        )
        self.expand_bias = parameter(zero, (channels,), ("embed",))
        self.points = parameter(init, (channels,), ("embed",))
        self.points_bias = parameter(zero, (), ())

    def __call__(self, field: Field, context: Context) -> Field:
        return scse(
            field,
            self.squeeze[...],
            self.expand[...],
            self.points[...],
            squeeze_bias=self.squeeze_bias[...],
            expand_bias=self.expand_bias[...],
            points_bias=self.points_bias[...],
        )


class UpBlock(nnx.Module):
    """Interpolation, join, attention; (conv, batch norm, ReLU) twice, attention.

    Args of the constructor:
        channel_in: number of channels of the coarse field.
        channel_skip: number of channels of the concatenated field; 0 for none, in which
            case the first attention has parameters but is not applied, as in
            segmentation_models_pytorch.
        channel_out: number of channels of the output.
        bilinear: whether the interpolation is bilinear, or nearest.
    """

    def __init__(
        self, channel_in: int, channel_skip: int, channel_out: int, *, bilinear: bool
    ) -> None:
        self.resize = resize_bilinear if bilinear else resize_nearest
        joined = channel_in + channel_skip
        self.attention_1 = SCSE(joined)
        self.layers = nnx.List(
            ConvNorm(width, channel_out, 3, kernel_init=kaiming_uniform(9 * width))
            for width in (joined, channel_out)
        )
        self.attention_2 = SCSE(channel_out)

    def __call__(
        self,
        field: Field,
        skip: Field | None,
        context: Context,
        *,
        size: tuple[int, int],
    ) -> Field:
        field = self.resize(field, size)
        if skip is not None:
            field = self.attention_1(join(field, skip), context)
        for layer in self.layers:
            field = relu(layer(field, context))
        return self.attention_2(field, context)


class UNetDecoder(nnx.Module):
    """Decodes the fields of the encoder to the grid.

    Args of the constructor:
        encoder: numbers of channels of the encoder's fields, finest first.
        channels: numbers of channels of the blocks, coarsest first.
        bilinear: see `UpBlock`.
    """

    def __init__(
        self, encoder: Sequence[int], channels: Sequence[int], *, bilinear: bool
    ) -> None:
        widths = (encoder[-1], *channels[:-1])
        skips = (*reversed(encoder[:-1]), 0)
        self.blocks = nnx.List(
            UpBlock(width, skip, channel, bilinear=bilinear)
            for width, skip, channel in zip(widths, skips, channels, strict=True)
        )

    def __call__(
        self, fields: Sequence[Field], grid: tuple[int, int], context: Context
    ) -> Field:
        """Returns the output of the last block.

        Args:
            fields: fields of the encoder, finest first.
            grid: rows and columns of the result.
            context: context of the forward pass.
        """
        *finer, field = fields
        skips = [*reversed(finer), None]
        for block, skip in zip(self.blocks, skips, strict=True):
            size = grid if skip is None else (skip.layout.size, skip.data.shape[2])
            field = context.run(block, field, skip, size=size)
        return field
