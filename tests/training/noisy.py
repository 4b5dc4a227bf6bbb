"""The tiny model with additive noise: `model.type: noisy`."""

from __future__ import annotations

from typing import Any, ClassVar

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from credit_jax.nn.context import Context
from credit_jax.nn.parameters import parameter
from credit_jax.nn.run_blocks import run_block
from credit_jax.parallel.params.spec import constant
from credit_jax.parallel.rows.layout import Field
from tests.training.tiny import Dense, TinyConfig

# Name of the draw.
DRAW = "noise"


class NoisyConfig(TinyConfig):
    """The keys of the tiny model."""

    draws_noise: ClassVar[bool] = True


class NoisyDense(Dense):
    """`down tanh(up x) + bias + spread N(0, 1)`, the noise at every point."""

    def __init__(self, num_in: int, hidden: int, num_out: int, height: int) -> None:
        super().__init__(num_in, hidden, num_out)
        self.spread = parameter(constant(0.5), (num_out,), (None,))
        self.height = height

    def __call__(self, x: Array, context: Context) -> Array:
        spread = self.spread[...].reshape(1, -1, 1, 1, 1)
        points = Field(jnp.moveaxis(x[:, :, 0], 1, -1), context.rows(self.height))
        noise = context.normal_field(DRAW, points, spread.size)
        noise = jnp.moveaxis(noise, -1, 1)[:, :, None]
        return super().__call__(x, context) + spread * noise


class Noisy(nnx.Module):
    """A model of one `NoisyDense`."""

    def __init__(self, config: TinyConfig) -> None:
        channels = config.input_channels, config.hidden, config.output_channels
        self.dense = NoisyDense(*channels, config.image_height)

    def __call__(self, inputs: Any, context: Context) -> Array:
        return run_block(context, self.dense, inputs["x"])
