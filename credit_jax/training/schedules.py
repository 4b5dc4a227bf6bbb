"""Learning-rate schedules: `optax.Schedule`s of the number of micro-batches seen.

The schedule `plateau` depends on a metric and is in its own module.

CREDIT steps its per-batch schedulers after every micro-batch, whether or not the
optimizer stepped, and its per-epoch ones at the end of an epoch. Index 0 is the first
micro-batch. All arithmetic is float32.

Constants, warm-ups and their joining are optax's. Its cosine is not used: near the end
`1 + cos(pi t / T)` cancels in float32, an error of 1e-3 of the rate in the last 500th
of a run; `sin^2` of the remaining phase does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike

from credit_jax.config.trainer import TrainerConfig

PER_EPOCH = ("cosine-annealing", "lambda")
PLATEAU, RESTARTS = "plateau", "cosine-annealing-restarts"
# CREDIT's `lambda` schedule has no settings; these are constants of its code.
LAMBDA_EPOCHS, LAMBDA_WARMUP_EPOCHS = 100, 10


def kind_of(trainer: TrainerConfig) -> str | None:
    """`scheduler_type`, or None for a constant rate."""
    if not trainer.use_scheduler or trainer.scheduler is None:
        return None
    return trainer.scheduler.scheduler_type


def keeps_rate(trainer: TrainerConfig) -> bool:
    """Whether the rate is part of the run's state: a constant one, and `plateau`'s.

    Others are functions of the micro-batches seen.
    """
    return kind_of(trainer) in (None, PLATEAU)


def sets_first_rate(trainer: TrainerConfig) -> bool:
    """Whether the first micro-batch trains at `learning_rate`, whatever the schedule.

    CREDIT sets it with `update_learning_rate` when everything is loaded, in a run from
    fresh weights, too. A schedule by batch gives all later rates; one by epoch begins
    at `learning_rate` (`cosine-annealing`) or steps once more before the first batch
    (`lambda`).
    """
    by_epoch = keeps_rate(trainer) or kind_of(trainer) in PER_EPOCH
    return trainer.update_learning_rate and not by_epoch


def build_schedule(trainer: TrainerConfig, *, batches_per_epoch: int) -> optax.Schedule:
    """The schedule of the `trainer` section.

    Args:
        trainer: `learning_rate`, `use_scheduler`, `scheduler`.
        batches_per_epoch: micro-batches of one epoch, for schedules that step by epoch.

    Returns:
        Micro-batches seen -> learning rate, scalars. For `plateau` the rate before it
        is reduced.

    Raises:
        ValueError: the scheduler is unknown, or its settings are invalid.
    """
    schedule = _by_kind(trainer)
    if kind_of(trainer) in PER_EPOCH:
        return per_epoch(schedule, batches_per_epoch)
    return schedule


def epoch_schedule(trainer: TrainerConfig) -> optax.Schedule | None:
    """The schedule of epochs, of those that step by epoch; None for others."""
    return _by_kind(trainer) if kind_of(trainer) in PER_EPOCH else None


def _by_kind(trainer: TrainerConfig) -> optax.Schedule:
    """The schedule of micro-batches, or of epochs for those of `PER_EPOCH`."""
    base = trainer.learning_rate
    if keeps_rate(trainer):
        return optax.constant_schedule(base)
    kind, settings = _split(trainer.scheduler)
    if kind not in _BUILDERS:
        raise ValueError(
            f"trainer.scheduler.scheduler_type: got {kind!r}, expected one of "
            f"{', '.join(_BUILDERS)}; for a constant rate set use_scheduler: false"
        )
    return _BUILDERS[kind](base, **settings)


def per_epoch(schedule: optax.Schedule, batches_per_epoch: int) -> optax.Schedule:
    """Converts a schedule of epochs to one of micro-batches."""

    def by_batch(step: Any) -> ArrayLike:
        return schedule(step // max(batches_per_epoch, 1))

    return by_batch


def counted_from(schedule: optax.Schedule, start: int) -> optax.Schedule:
    """The schedule of micro-batches seen since `start` others."""
    return (lambda step: schedule(step - start)) if start else schedule


def with_first_rate_at(
    schedule: optax.Schedule, micro_step: int | None, rate: float | None = None
) -> optax.Schedule:
    """The schedule with another rate at one micro-batch.

    CREDIT builds the schedule after it has loaded the optimizer, which resets the rate:
    the first micro-batch of a resumed run trains at the first rate.

    Args:
        schedule: micro-batches seen -> learning rate.
        micro_step: the micro-batch; None changes nothing.
        rate: its rate; None for the first one of the schedule.
    """
    if micro_step is None:
        return schedule

    def changed(step: ArrayLike) -> Array:
        first = schedule(0) if rate is None else rate
        return jnp.where(step == micro_step, first, schedule(step))

    return changed


def _split(section: Any) -> tuple[str, dict[str, Any]]:
    settings = {} if section is None else section.model_dump()
    return settings.pop("scheduler_type", ""), settings


def linear_warmup_cosine(
    base: float,
    *,
    warmup_steps: int = 1000,
    total_steps: int = 500_000,
    min_lr: float = 1e-5,
) -> optax.Schedule:
    """`base * step / warmup_steps` from 0, then half a cosine down to `min_lr`.

    Args:
        base: rate at the end of the warm-up.
        warmup_steps: micro-batches of the linear part.
        total_steps: micro-batches of both parts; `min_lr` from there on.
        min_lr: last rate.
    """

    def ramp(step: Any) -> Array:
        # Not `optax.linear_schedule`, which is 1e-5 off in the first of 1000 steps.
        return base * (jnp.asarray(step) / max(1, warmup_steps))

    fall = cosine_decay(base, max(1, total_steps - warmup_steps), min_lr)
    return optax.join_schedules([ramp, fall], [warmup_steps])


def cosine_decay(base: float, num_steps: int, end: float) -> optax.Schedule:
    """`optax.cosine_decay_schedule`, precise near its end.

    `end + (base - end) (1 + cos(pi t / num_steps)) / 2`, and `end` from there on.
    """
    return lambda step: end + (base - end) * _cosine(step, num_steps)


def cosine_annealing(
    base: float, *, T_max: int, eta_min: float = 0.0
) -> optax.Schedule:
    """`eta_min + (base - eta_min) (1 + cos(pi e / T_max)) / 2`, `e` in epochs."""

    def schedule(epoch: Any) -> Array:
        phase = epoch % (2 * T_max)
        place = jnp.minimum(phase, 2 * T_max - phase)
        return eta_min + (base - eta_min) * _cosine(place, T_max)

    return schedule


def lambda_schedule(base: float) -> optax.Schedule:
    """CREDIT's fixed 10-epoch warm-up and 90-epoch cosine, index in epochs.

    CREDIT steps it at the start and at the end of every epoch, so that epoch `e` trains
    at index `2 e + 1` of the curve; that is reproduced.
    """

    def schedule(epoch: Any) -> Array:
        index = 2 * epoch + 1
        warm = index / LAMBDA_WARMUP_EPOCHS
        remaining = (LAMBDA_EPOCHS - index) / (LAMBDA_EPOCHS - LAMBDA_WARMUP_EPOCHS)
        fall = jnp.square(jnp.sin(0.5 * jnp.pi * remaining))
        return base * jnp.where(index < LAMBDA_WARMUP_EPOCHS, warm, fall)

    return schedule


def cosine_annealing_restarts(
    base: float,
    *,
    first_cycle_steps: int,
    cycle_mult: float = 1.0,
    max_lr: float = 0.1,
    min_lr: float = 0.001,
    warmup_steps: int = 0,
    gamma: float = 1.0,
) -> optax.Schedule:
    """Cycles of a linear warm-up from `min_lr` and half a cosine down from `max_lr`.

    Args:
        base: not used: `trainer.learning_rate` has no effect here, as in CREDIT.
        first_cycle_steps: micro-batches of the first cycle, warm-up included.
        cycle_mult: factor of the cosine part from cycle to cycle, at least 1.
        max_lr: top of the first cycle.
        min_lr: bottom of every cycle; also the rate of the very first micro-batch.
        warmup_steps: micro-batches of every warm-up.
        gamma: factor of the top from cycle to cycle.

    Raises:
        ValueError: a cycle without a cosine part, or one that shrinks.
    """
    del base
    if warmup_steps >= first_cycle_steps:
        raise ValueError(
            f"trainer.scheduler: warmup_steps {warmup_steps} must be below "
            f"first_cycle_steps {first_cycle_steps}"
        )
    if cycle_mult < 1:
        raise ValueError(
            f"trainer.scheduler.cycle_mult: got {cycle_mult}, expected at least 1 "
            "(shorter and shorter cycles come to an end)"
        )
    starts, lengths = _cycles(first_cycle_steps, cycle_mult, warmup_steps)

    def schedule(step: Any) -> Array:
        row = jnp.searchsorted(jnp.asarray(starts), step, side="right") - 1
        length = jnp.asarray(lengths)[row]
        beyond = step - jnp.asarray(starts)[row]
        cycle, place = row + beyond // length, beyond % length
        top = max_lr * jnp.power(gamma, cycle.astype(jnp.float32))
        warm = place / max(1, warmup_steps)
        fall = _cosine(place - warmup_steps, length - warmup_steps)
        rate = min_lr + (top - min_lr) * jnp.where(place < warmup_steps, warm, fall)
        return jnp.where(step == 0, min_lr, rate)

    return schedule


def _cycles(first: int, factor: float, warmup: int) -> tuple[np.ndarray, np.ndarray]:
    """Start and length of each cycle; the last length repeats."""
    starts, lengths = [0], [first]
    while starts[-1] + lengths[-1] < np.iinfo(np.int32).max:
        following = int((lengths[-1] - warmup) * factor) + warmup
        if following == lengths[-1]:
            break
        starts.append(starts[-1] + lengths[-1])
        lengths.append(min(following, np.iinfo(np.int32).max))
    return np.asarray(starts, np.int32), np.asarray(lengths, np.int32)


def _cosine(place: Any, length: Any) -> Array:
    """`(1 + cos(pi * place / length)) / 2`, 0 from `length` on, exact near its end."""
    remaining = jnp.clip((length - place) / length, 0.0, 1.0)
    return jnp.square(jnp.sin(0.5 * jnp.pi * remaining))


_BUILDERS: dict[str, Callable[..., optax.Schedule]] = {
    "linear-warmup-cosine": linear_warmup_cosine,
    RESTARTS: cosine_annealing_restarts,
    "cosine-annealing": cosine_annealing,
    "lambda": lambda_schedule,
}
