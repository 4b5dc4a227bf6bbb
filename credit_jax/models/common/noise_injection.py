"""Noise added to the features of a model."""

from __future__ import annotations

from flax import nnx
from jaxtyping import Array, Float

from credit_jax.kernels import dense
from credit_jax.nn.context import Context
from credit_jax.nn.parameters import parameter
from credit_jax.ops.affine import add_bias
from credit_jax.parallel.params.initializers import constant, torch_uniform
from credit_jax.parallel.rows.layout import Field


class NoiseInjection(nnx.Module):
    """CREDIT's StochasticDecompositionLayer.

    x + factor * noise * style(z) * modulation, with noise N(0, 1) at every point and
    channel, and a linear layer `style` of the latent noise z of each sample.

    Args of the constructor:
        name: name of the noise, unique within the model.
        latent: size of z.
        channels: number of channels of the field.
        factor: a constant, stored as a frozen parameter as in CREDIT's checkpoints.
    """

    def __init__(self, name: str, latent: int, channels: int, factor: float) -> None:
        self.name = name
        init = torch_uniform(latent)
        shape = latent, channels
        # No spectral norm: CREDIT adds these layers after applying it to the model.
        self.kernel = parameter(init, shape, ("embed", "embed"))
        self.bias = parameter(init, (channels,), ("embed",))
        self.modulation = parameter(constant(1.0), (channels,), ("embed",))
        self.factor = parameter(constant(factor), (1,), (None,), frozen=True)

    def __call__(
        self, field: Field, latent: Float[Array, "batch latent"], context: Context
    ) -> Float[Array, "batch rows lon channel"]:
        kernel, dtype = self.kernel[...], field.data.dtype
        style = add_bias(dense(latent.astype(dtype), kernel), self.bias[...])
        scale = style * self.modulation[...][None]
        noise = context.normal_field(self.name, field).astype(dtype)
        noise = noise * self.factor[...][None, None, None]
        return field.data + noise * scale[:, None, None]
