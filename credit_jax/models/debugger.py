"""CREDIT's `debugger` (models/debugger_model.py): one linear layer over channels.

It tests data, losses and checkpoints without the cost of a real model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float
from pydantic import PositiveInt

from credit_jax.kernels import dense
from credit_jax.models.common.config import Side, VariableKeys, register_model
from credit_jax.nn.context import Context
from credit_jax.nn.parameters import parameter
from credit_jax.nn.run_blocks import run_block
from credit_jax.parallel.params.spec import torch_uniform
from credit_jax.state_dict.key_table import LINEAR, Rule
from credit_jax.state_dict.torch_model import TorchModel


class DebuggerConfig(VariableKeys):
    """Constructor keys of CREDIT's DebuggerModel, with its defaults.

    Unknown keys are ignored with a warning, as CREDIT's model accepts any keys.

    Attributes:
        image_height, image_width: grid of input and output.
        frames: number of time steps of input and output.
    """

    passes_over: ClassVar[bool] = True
    ignored: ClassVar[Mapping[str, str]] = {
        "output_frames": "the output has the frames of the input",
        "post_conf": "blocks after the model are postblocks here",
    }

    type: Literal["debugger"] = "debugger"
    image_height: Side = 640
    image_width: Side = 1280
    frames: PositiveInt = 2

    @property
    def output_frames(self) -> int:
        """Number of time steps of the output, equal to that of the input."""
        return self.frames


class ChannelLinear(nnx.Module):
    """A linear layer over the last dim, without bias."""

    def __init__(self, channel_in: int, channel_out: int) -> None:
        shape = channel_in, channel_out
        self.kernel = parameter(torch_uniform(channel_in), shape, ("embed", "embed"))

    def __call__(
        self, x: Float[Array, "*batch channel_in"], context: Context
    ) -> Float[Array, "*batch channel_out"]:
        return dense(x, self.kernel[...])


DEBUGGER = TorchModel(
    key_table=(Rule("linear.weight", "linear/kernel", LINEAR),),
    block_names=lambda _: [],
)


@register_model(DebuggerConfig, DEBUGGER)
class Debugger(nnx.Module):
    """The debugger model; see `DebuggerConfig` for its keys."""

    def __init__(self, config: DebuggerConfig) -> None:
        self.linear = ChannelLinear(config.input_channels, config.output_channels)

    def __call__(
        self, inputs: Mapping[str, Array], context: Context
    ) -> Float[Array, "batch channel_out time rows lon"]:
        """Applies the linear layer at every point and frame."""
        x = inputs["x"]
        data = jnp.moveaxis(context.precision.cast(x), 1, -1)
        return jnp.moveaxis(run_block(context, self.linear, data), -1, 1).astype(
            x.dtype
        )
