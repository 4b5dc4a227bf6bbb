"""The decoder of a U-Net: it doubles the grid and joins the encoder's fields."""

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
        channel_in: of the coarse field.
        channel_skip: of the field that is joined; 0 for none. The attention of the
            joined field has parameters all the same, as in PyTorch.
        channel_out: of the output.
        bilinear: the interpolation, else by the nearest point.
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
    """From the encoder's fields back to the grid.

    Args of the constructor:
        encoder: channels of the encoder's fields, finest first.
        channels: of the blocks, coarsest first.
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
        """The last block's output, on `grid`; `fields` are finest first."""
        *finer, field = fields
        skips = [*reversed(finer), None]
        for block, skip in zip(self.blocks, skips, strict=True):
            size = grid if skip is None else (skip.layout.size, skip.data.shape[2])
            field = context.run(block, field, skip, size=size)
        return field
