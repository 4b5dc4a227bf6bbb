"""A small model with every extension: inputs, frozen parameters, state, noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from credit_jax.models.common.config import FieldSpec, ModelConfig, VectorSpec
from credit_jax.models.model_def import ModelDef
from credit_jax.nn.context import Context
from credit_jax.nn.layers import BatchNorm, Conv, Linear
from credit_jax.nn.parameters import of_call, parameter, stack_blocks
from credit_jax.nn.run_blocks import run_block, scan_blocks
from credit_jax.parallel.domain.pool import resize_bilinear
from credit_jax.parallel.params.spec import constant, torch_uniform
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field

HEIGHT, WIDTH, REGION = 11, 6, (5, 4)
CHANNELS, DEPTH, FRAMES_OUT = 8, 2, 2


class ToyConfig(ModelConfig):
    """Inputs: fields on two grids and a vector per sample; the target has two steps."""

    type: str = "toy"
    use_spectral_norm: bool = True

    @property
    def inputs(self) -> Mapping[str, Any]:
        return {
            "x": FieldSpec(3, 1, HEIGHT, WIDTH),
            "region": FieldSpec(2, 1, *REGION),
            "time": VectorSpec(4),
        }

    @property
    def output(self) -> FieldSpec:
        return FieldSpec(2, FRAMES_OUT, HEIGHT, WIDTH)


class Entry(nnx.Module):
    """conv(x) (1 + a) + region + b, with a and b from the vector; then two matrices."""

    def __init__(self) -> None:
        init = torch_uniform(CHANNELS)
        square, dims = (CHANNELS, CHANNELS), ("embed", "embed")
        self.conv = Conv(3, CHANNELS, 3, padding=1)
        self.region = Conv(2, CHANNELS, 1)
        self.film = Linear(4, 2 * CHANNELS)
        # As FuXi's qkv: it has spectral norm vectors, but is never normalized nor
        # trained.
        self.frozen = parameter(
            init, square, dims, matrix_out=(1,), calls=0, frozen=True
        )
        self.twice = parameter(init, square, dims, matrix_out=(1,), calls=2)

    def __call__(
        self, field: Field, region: Field, time: Array, context: Context
    ) -> Field:
        field = self.conv(field)
        region = resize_bilinear(self.region(region), (HEIGHT, WIDTH))
        scale, shift = np.split(np.arange(2 * CHANNELS), 2)
        film = self.film(time)[:, None, None]
        data = field.data * (1 + film[..., scale]) + film[..., shift]
        data = data + reshard(region, field.layout).data
        matrix = self.frozen[...]
        for call in range(2):
            matrix = matrix @ of_call(self.twice[...], 2, call)
        return field.like(jnp.einsum("brci,io->brco", data, matrix))


class Block(nnx.Module):
    """Two batch norms, a convolution, a pair of layers split over tp, and noise."""

    tp_plan = (("up", "down"),)

    def __init__(self) -> None:
        self.norm_0 = BatchNorm(CHANNELS)
        self.conv = Conv(CHANNELS, CHANNELS, 3, padding=1)
        self.norm_1 = BatchNorm(CHANNELS)
        self.up = Linear(CHANNELS, 2 * CHANNELS)
        self.down = Linear(2 * CHANNELS, CHANNELS)
        self.noise = parameter(constant(0.3), (CHANNELS,), ("embed",))

    def __call__(self, field: Field, context: Context) -> Field:
        x = self.conv(self.norm_0(field, context))
        x = jax.nn.silu(self.norm_1(x, context).data)
        x = self.down(jax.nn.silu(self.up(x)), context)
        noise = context.normal_field("block", field) * self.noise[...][None, None, None]
        return field.like(field.data + x + noise.astype(x.dtype))


class Exit(nnx.Module):
    def __init__(self) -> None:
        self.linear = Linear(CHANNELS, 2 * FRAMES_OUT)

    def __call__(self, field: Field, context: Context) -> Field:
        noise = context.normal_vector("exit", field.data.shape[0], 2 * FRAMES_OUT)
        return field.like(self.linear(field.data) + noise[:, None, None])


class Toy(nnx.Module):
    def __init__(self, config: ToyConfig) -> None:
        self.entry = Entry()
        self.blocks = stack_blocks(Block, DEPTH)
        self.exit = Exit()

    def __call__(self, inputs: Mapping[str, Array], context: Context) -> Array:
        field, region = (
            Field(inputs[name][:, :, 0].transpose(0, 2, 3, 1), context.rows(height))
            for name, height in (("x", HEIGHT), ("region", REGION[0]))
        )
        field = run_block(context, self.entry, field, region, inputs["time"])
        field = scan_blocks(context, self.blocks, field, DEPTH)
        data = run_block(context, self.exit, field).data
        batch, rows, lon, _ = data.shape
        return data.reshape(batch, rows, lon, 2, FRAMES_OUT).transpose(0, 3, 4, 1, 2)


TOY = ModelDef(ToyConfig(), Toy)


def toy_batch(batch: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Random inputs and a target, on the host."""
    rng = np.random.default_rng(seed)
    specs: dict[str, Any] = {**TOY.inputs, "y": TOY.output}
    return {
        name: rng.normal(size=spec.shape(batch)).astype("f4")
        for name, spec in specs.items()
    }
