"""Ensemble members by noise: the same noise in CREDIT's model and in credit_jax's.

CREDIT's deterministic models give all members of a sample the same prediction, so that
a CRPS has no spread to train. This module adds noise to the prediction, drawn like that
of credit_jax's models, and passes the same arrays to CREDIT.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from credit_jax.models.crossformer.config import EncoderConfig
from credit_jax.models.crossformer.crossformer import WXFormer
from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import NOISE
from credit_jax.nn.context import Context, Noise
from credit_jax.ops.random import random_normal
from credit_jax.parallel.rows.layout import Field, block_layout
from credit_jax.training.setup import Setup

DRAW = "members"


class _Noisy(WXFormer):
    """WXFormer plus `spread` N(0, 1) at every point of its prediction."""

    def __init__(self, config: Any, spread: float) -> None:
        super().__init__(config)
        self.spread = spread

    def __call__(self, inputs: Mapping[str, Array], context: Context) -> Array:
        y = super().__call__(inputs, context)
        points = Field(
            jnp.moveaxis(y[:, :, 0], 1, -1), context.rows(self.config.image_height)
        )
        noise = context.normal_field(DRAW, points)
        return y + self.spread * jnp.moveaxis(noise, -1, 1)[:, :, None]


def with_noise(model_def: ModelDef, spread: float) -> ModelDef:
    """The WXFormer with noise added to its prediction.

    Args:
        model_def: definition of a WXFormer.
        spread: standard deviation of the noise, in units of the prediction.
    """
    return dataclasses.replace(model_def, make=partial(_Noisy, spread=spread))


def noise_of(
    setup: Setup, key: Array, spread: float, *, num_steps: int, num_valid: int
) -> dict[str, np.ndarray]:
    """The noise of a run of single steps on one process, for CREDIT.

    Args:
        setup: setup of the run, on one device.
        key: key of the state before the first step.
        spread: see `with_noise`.
        num_steps: training steps.
        num_valid: validation batches of an epoch.

    Returns:
        "train" and "valid", (batch, sample x member, channel, time, lat, lon) float32.
    """
    trainer, config = setup.plan.config.trainer, setup.model.model_def.config
    members = setup.plan.objective.rollout.num_members
    draw = jax.jit(partial(_draw, config, spread), static_argnums=1)
    train_keys = [
        jax.random.fold_in(jax.random.fold_in(key, step), NOISE)
        for step in range(num_steps)
    ]
    valid_keys = [jax.random.key(index) for index in range(num_valid)]
    sizes = trainer.train_batch_size * members, trainer.valid_batch_size * members
    return {
        name: np.stack([np.asarray(draw(sample_key, size)) for sample_key in keys])
        for name, keys, size in zip(
            ("train", "valid"), (train_keys, valid_keys), sizes, strict=True
        )
    }


def _draw(config: EncoderConfig, spread: float, key: Array, num_samples: int) -> Array:
    noise = Noise(key).field(
        random_normal,
        DRAW,
        jnp.arange(num_samples),
        block_layout(config.image_height),
        config.image_width,
        config.output.channels,
    )
    return spread * jnp.moveaxis(noise, -1, 1)[:, :, None]
