"""CREDIT's `unet` and `unet_downscaling`: segmentation_models_pytorch's U-Net.

A ResNet encoder, a decoder with gates of channels and points, and a convolution. The
mean of two frames enters the encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from credit_jax.models.common.entry import correct, fold_frames
from credit_jax.models.unet.config import Activation, DownscalingUNetConfig, UNetConfig
from credit_jax.models.unet.decoder import UNetDecoder
from credit_jax.models.unet.resnet import ResNetEncoder
from credit_jax.nn.context import Context
from credit_jax.nn.layers import Conv
from credit_jax.nn.run_blocks import run_block
from credit_jax.parallel.params.initializers import constant, xavier_uniform
from credit_jax.parallel.rows.layout import Field
from credit_jax.parallel.rows.reshard import reshard
from credit_jax.parallel.scopes import INPUT, OUTPUT

# Functions of the output.
ACTIVATIONS: Mapping[Activation, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
}


class SegmentationHead(nnx.Module):
    """The last convolution, 3 x 3, and the function of the output."""

    def __init__(
        self, channel_in: int, channel_out: int, activation: Activation
    ) -> None:
        self.activation = ACTIVATIONS[activation]
        self.conv = Conv(
            channel_in,
            channel_out,
            3,
            padding=1,
            kernel_init=xavier_uniform(9 * channel_in, 9 * channel_out),
            bias_init=constant(0.0),
            spectral_norm=False,
        )

    def __call__(self, field: Field, context: Context) -> Field:
        field = self.conv(field)
        return field.like(self.activation(field.data))


class UNet(nnx.Module):
    """The U-Net model; see `UNetConfig` for its keys."""

    def __init__(self, config: UNetConfig | DownscalingUNetConfig) -> None:
        self.config = config
        architecture = config.architecture
        self.encoder = ResNetEncoder(config.input_channels, architecture.sizes)
        self.decoder = UNetDecoder(architecture)
        self.head = SegmentationHead(
            architecture.decoder_channels[-1],
            config.output_channels,
            architecture.activation,
        )

    def __call__(
        self, inputs: Mapping[str, Array], context: Context
    ) -> Float[Array, "batch channel_out time_out rows lon"]:
        """Predicts from local samples and rows, in block layout over the domain axis.

        Args:
            inputs: "x", (batch, channel, time, rows, lon).
            context: context of the forward pass.

        Differs from CREDIT: in training, the statistics of batch norms are those of the
        global batch, not of each data-parallel rank.
        """
        x = inputs["x"]
        with jax.named_scope(INPUT):
            data = fold_frames(context.precision.cast(x), "mean")
        field = Field(data, context.rows(self.config.image_height))
        step = self._runge_kutta if self.config.rk4_integration else self._network
        field = step(field, context)
        with jax.named_scope(OUTPUT):
            y = field.data.transpose(0, 3, 1, 2)[:, :, None].astype(x.dtype)
        return correct(self.config, x, y, context)

    def _network(self, field: Field, context: Context) -> Field:
        grid = field.layout.size, field.data.shape[2]
        fields = self.encoder(field, context, self.config.architecture.encoder_depth)
        decoded = self.decoder(fields, grid, context)
        return reshard(run_block(context, self.head, decoded), field.layout)

    def _runge_kutta(self, field: Field, context: Context) -> Field:
        """Returns (k1 + 2 k2 + 2 k3 + k4) / 6; k1 = f(x), k2 = f(x + k1 / 2), ..."""
        slopes = [self._network(field, context)]
        for factor in (0.5, 0.5, 1.0):
            stage = field.like(field.data + slopes[-1].data * factor)
            slopes.append(self._network(stage, context))
        k1, k2, k3, k4 = (slope.data for slope in slopes)
        return field.like((k1 + 2 * k2 + 2 * k3 + k4) / 6)
