"""The position of a run after an epoch: its best result, the state of `plateau`."""

from __future__ import annotations

import dataclasses
import math

from credit_jax.checkpoint import PlateauState, Progress
from credit_jax.config.schedules import PlateauConfig
from credit_jax.config.trainer import TrainerConfig


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
    state, rate = plateau_after(config, progress.plateau, rate, metric)
    return dataclasses.replace(progress, plateau=state, learning_rate=rate)


def is_better(value: float, best: float | None, direction: str) -> bool:
    """Whether a metric beats the best one; NaN never does."""
    if math.isnan(value):
        return False
    if best is None:
        return True
    return value < best if direction == "min" else value > best


def plateau_after(
    config: PlateauConfig, state: PlateauState, rate: float, value: float
) -> tuple[PlateauState, float]:
    """State and learning rate of PyTorch's ReduceLROnPlateau after one more epoch.

    An epoch is bad if its metric is not better than the best one by `threshold`; after
    more than `patience` bad ones the rate is `max(factor * rate, min_lr)`.

    Args:
        config: the `trainer.scheduler` section.
        state: state before the epoch.
        rate: learning rate of the epoch.
        value: value of the metric; NaN is never better.
    """
    better = _is_better(config, value, state.best)
    bad, cooldown = 0 if better else state.bad_epochs + 1, state.cooldown
    if cooldown > 0:
        bad, cooldown = 0, cooldown - 1
    if bad > config.patience:
        lower = max(rate * config.factor, config.min_lr)
        rate = lower if rate - lower > config.eps else rate
        bad, cooldown = 0, config.cooldown
    best = value if better else state.best
    return PlateauState(state.epochs + 1, best, bad, cooldown), rate


def _is_better(config: PlateauConfig, value: float, best: float | None) -> bool:
    if best is None:
        return value < float("inf") if config.mode == "min" else value > -float("inf")
    sign = 1.0 if config.mode == "max" else -1.0
    if config.threshold_mode == "rel":
        bound = best * (1.0 + sign * config.threshold)
    else:
        bound = best + sign * config.threshold
    return value > bound if config.mode == "max" else value < bound
