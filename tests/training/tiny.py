"""A model that compiles quickly, registered as `model.type: tiny`, and its configs.

It has two dense layers over the channels of a point, whose hidden units are split over
tp, with spectral norm: parameters, vectors and shards of every kind in real models.
"""

import copy
import os

import jax.numpy as jnp
import yaml
from flax import nnx

from credit_jax.models.common.config import ModelConfig
from credit_jax.nn.parameters import parameter
from credit_jax.nn.run_blocks import run_block
from credit_jax.parallel.collectives import psum
from credit_jax.parallel.params.spec import torch_uniform
from tests.data.world import MODEL, raw_config


class TinyConfig(ModelConfig):
    type: str
    frames: int = 1
    output_frames: int = 1
    image_height: int
    image_width: int
    levels: int
    channels: int
    surface_channels: int
    input_only_channels: int
    output_only_channels: int
    hidden: int = 8
    use_spectral_norm: bool = True

    @property
    def output_channels(self):
        both = self.channels * self.levels + self.surface_channels
        return both + self.output_only_channels

    @property
    def input_channels(self):
        return (
            self.output_channels - self.output_only_channels + self.input_only_channels
        )

    def channel_sum(self, direction):
        only = getattr(self, f"{direction}_only_channels")
        return f"{self.channels} x {self.levels} + {self.surface_channels} + {only}"


class Dense(nnx.Module):
    def __init__(self, num_in, hidden, num_out):
        init = torch_uniform(4)
        self.up = parameter(init, (num_in, hidden), ("embed", "mlp"), matrix_out=(1,))
        self.down = parameter(
            init, (hidden, num_out), ("mlp", "embed"), matrix_out=(1,)
        )
        self.bias = parameter(init, (num_out,), (None,))

    def __call__(self, x, context):
        hidden = jnp.tanh(jnp.einsum("bctyx,ch->bhtyx", x, self.up[...]))
        out = jnp.einsum("bhtyx,hc->bctyx", hidden, self.down[...])
        return psum(out, context.axes.tensor) + self.bias[...].reshape(1, -1, 1, 1, 1)


class Tiny(nnx.Module):
    def __init__(self, config):
        self.dense = Dense(config.input_channels, config.hidden, config.output_channels)

    def __call__(self, inputs, context):
        return run_block(context, self.dense, inputs["x"])


def tiny_config(world, folder, **changes):
    """Returns a mapping as CREDIT's YAML; `trainer__epochs=2` sets a nested key."""
    model = copy.deepcopy(MODEL) | {"type": "tiny"}
    settings = {
        "save_loc": os.fspath(folder),
        "model": model,
        "validation_data__start_datetime": "2000-01-06",
        "validation_data__end_datetime": "2000-01-10",
        "loss__use_latitude_weights": True,
        "loss__validation_loss": "mse",
        "trainer__batches_per_epoch": 6,
        "trainer__valid_batches_per_epoch": 3,
        "trainer__use_ema": True,
        "trainer__use_scheduler": True,
        "trainer__scheduler": {
            "scheduler_type": "linear-warmup-cosine",
            "warmup_steps": 3,
            "total_steps": 30,
        },
        "trainer__grad_max_norm": 1.0,
        "trainer__train_batch_size": 4,
    }
    return raw_config(world, **settings | changes)


def write_yaml(path, mapping):
    path.write_text(yaml.safe_dump(mapping, sort_keys=False))
    return os.fspath(path)
