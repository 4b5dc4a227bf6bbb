"""The validation of an epoch."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax
import numpy as np

from credit_jax.config.trainer import TrainerConfig
from credit_jax.data import Batch, Loader
from credit_jax.io.activity import activity
from credit_jax.nn.noise import Noise
from credit_jax.training.batches import num_batches
from credit_jax.training.display import Display
from credit_jax.training.state import TrainState
from credit_jax.training.steps import Steps


def validate(
    trainer: TrainerConfig,
    steps: Steps,
    loader: Loader | None,
    state: TrainState,
    display: Display,
    *,
    epoch: int,
    last: int,
    seen: Callable[[Batch], None],
) -> dict[str, float]:
    """Loss and metrics, averaged over batches as CREDIT does; {} without validation.

    Args:
        trainer: the trainer section.
        steps: compiled functions.
        loader: validation batches.
        state: state whose averaged or last parameters are evaluated.
        display: shows the progress.
        epoch, last: number of this epoch, from 0, and number of epochs of the run.
        seen: called with each batch.
    """
    if loader is None or steps.evaluate is None:
        return {}
    total = num_batches(loader, trainer.valid_batches_per_epoch)
    display.start(f"validation {epoch + 1}/{last}", total=total)
    weights = steps.fuse(state.evaluation_params, state.evaluation_model_state)
    collected: dict[str, list[float]] = {}
    for index, batch in enumerate(itertools.islice(loader.epoch(epoch), total)):
        noise = Noise(jax.random.key(index))
        with activity(f"validation batch {index + 1}/{total}"):
            values = steps.evaluate(*weights, steps.place_valid(batch), noise)
            for name, value in values.items():
                collected.setdefault(name, []).append(float(value))
        seen(batch)
        display.advance(1, len(batch.x) * jax.process_count())
    return {name: float(np.mean(values)) for name, values in collected.items()}
