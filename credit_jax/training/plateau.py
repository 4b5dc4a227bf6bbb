"""The schedule `plateau`: PyTorch's ReduceLROnPlateau, once an epoch."""

from __future__ import annotations

from credit_jax.checkpoint import PlateauState
from credit_jax.config.schedules import PlateauConfig


def after_epoch(
    config: PlateauConfig, state: PlateauState, rate: float, value: float
) -> tuple[PlateauState, float]:
    """State and learning rate after the metric of one more epoch.

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
