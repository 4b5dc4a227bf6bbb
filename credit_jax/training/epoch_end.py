"""The position of a run after an epoch: its best result, the state of `plateau`."""

from __future__ import annotations

import dataclasses
import math

from credit_jax.checkpoint import Progress
from credit_jax.config.schedules import PlateauConfig
from credit_jax.config.trainer import TrainerConfig
from credit_jax.training import plateau


def progress_after(
    trainer: TrainerConfig, progress: Progress, value: float | None, micro_step: int
) -> Progress:
    """The position after an epoch.

    Args:
        trainer: the trainer section.
        progress: position before the epoch ends.
        value: value of `trainer.training_metric`; None if it was not
            measured.
        micro_step: micro-batches seen, the name of the checkpoint to come.
    """
    after = dataclasses.replace(
        _with_plateau(trainer, progress, value),
        epoch=progress.epoch + 1,
        batches=0,
        samples=0,
        epoch_losses=(),
        epoch_sums={},
    )
    direction = trainer.training_metric_direction
    if value is None or not is_better(value, after.best_metric, direction):
        return after
    return dataclasses.replace(
        after,
        best_metric=value,
        best_epoch=progress.epoch,
        best_step=micro_step if trainer.save_best_weights else None,
    )


def _with_plateau(
    trainer: TrainerConfig, progress: Progress, value: float | None
) -> Progress:
    """The position with the state and the rate of the schedule `plateau`."""
    config, rate = trainer.scheduler, progress.learning_rate
    if progress.plateau is None or rate is None:
        return progress
    assert isinstance(config, PlateauConfig), "`start_of_run` sets it for that"
    metric = math.nan if value is None else value
    state, rate = plateau.after_epoch(config, progress.plateau, rate, metric)
    return dataclasses.replace(progress, plateau=state, learning_rate=rate)


def is_better(value: float, best: float | None, direction: str) -> bool:
    """Whether a metric beats the best one; NaN never does."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    return value < best if direction == "min" else value > best
