"""Initial states of our runs in comparisons with CREDIT's trainer."""

from typing import Any

import jax

from credit_jax.training.setup import Setup
from credit_jax.training.state import (
    TrainState,
    init_loss_state,
    place_state,
    state_of,
    state_specs,
)

# Seed of the key of dropout and noise.
SEED = 0


def start_of(setup: Setup, weights: Any) -> TrainState:
    """Returns the state before the first step."""
    params, model_state = jax.device_put(weights)
    further = {
        "ema": setup.plan.config.trainer.use_ema,
        "loss_state": init_loss_state(setup.plan.objective.loss, setup.loss_optimizer),
    }
    key = jax.random.key(SEED)
    state = state_of(setup.model, params, model_state, setup.optimizer, key, **further)
    specs = state_specs(setup.model, setup.optimizer, **further)
    return place_state(state, specs, setup.model.mesh)
