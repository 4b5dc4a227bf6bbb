"""Training steps of the tiny model on a mesh, with any optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax

from credit_jax.models.model_def import ModelDef
from credit_jax.models.parallel_model import ParallelModel, build_parallel_model
from credit_jax.parallel.placement import place_batch
from credit_jax.training.state import TrainState, init_state
from credit_jax.training.step import make_train_step
from tests.data.world import MODEL
from tests.support import make_mesh
from tests.training.tiny import Tiny, TinyConfig

BATCH, HEIGHT, WIDTH = 4, 6, 5
# Its matrices are split over dp_shard and tp, its bias is whole.
CONFIG = TinyConfig.model_validate(
    {**MODEL, "hidden": 256, "image_height": HEIGHT, "image_width": WIDTH}
)
MODEL_DEF = ModelDef(CONFIG, Tiny)


def toy_model(*, model_def: ModelDef = MODEL_DEF, **degrees: int) -> ParallelModel:
    """Returns the tiny model on a mesh; see `make_mesh`."""
    return build_parallel_model(model_def, make_mesh(**degrees))


def mse(tree: Any, context: Any) -> Any:
    """Returns the mean squared error."""
    return context.mean((tree["y_pred"] - tree["y"]) ** 2)


def toy_batches(model: ParallelModel, num: int) -> list[dict[str, jax.Array]]:
    """Returns batches of one micro-batch each, equal on every mesh."""
    rng = np.random.default_rng(0)
    mesh = model.parallel_config.mesh
    channels = {"x": CONFIG.input_channels, "y": CONFIG.output_channels}
    return [
        place_batch(
            {
                name: rng.normal(size=(1, BATCH, n, 1, HEIGHT, WIDTH)).astype("f")
                for name, n in channels.items()
            },
            mesh,
        )
        for _ in range(num)
    ]


def train_toy(
    model: ParallelModel,
    optimizer: optax.GradientTransformation,
    num_steps: int,
    *,
    ema: bool = False,
    **settings: Any,
) -> tuple[TrainState, TrainState, Sequence[float]]:
    """Returns the states before and after the steps, on the host, and the losses."""
    settings = settings | ({"ema_decay": 0.9} if ema else {})
    step = make_train_step(model, optimizer, mse, **settings)
    state = init_state(model, optimizer, jax.random.key(0), ema=ema)
    first, losses = jax.device_get(state), []
    for batch in toy_batches(model, num_steps):
        state, info = step(state, batch)
        losses.append(float(info["loss"][0]))
    return first, jax.device_get(state), losses
