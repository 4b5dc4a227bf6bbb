"""The stages of a run: which one a position is in, and what its beginning changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

from credit_jax.checkpoint import PlateauState, Progress
from credit_jax.config import Config
from credit_jax.config.curriculum import Until
from credit_jax.config.schedules import PlateauConfig
from credit_jax.config.trainer import TrainerConfig
from credit_jax.data import Loader
from credit_jax.training.records import MicroBatchWork
from credit_jax.training.steps import CompiledSteps


@dataclass(frozen=True, eq=False)
class Stage:
    """A part of a run with one training program; a run without curriculum has one.

    Attributes:
        trainer: the trainer section of the stage.
        loader: training batches.
        steps: makes the compiled functions from `schedule_step` of `Progress`; called
            when the stage begins.
        work: work of a micro-batch.
        lengths: `train_history_len` and the like, constant columns of the log.
        until: end of the stage; None for the last one.
        sets_rate, sets_schedule: whether the stage gives a learning rate, a schedule.
        summary: the stage in words.
    """

    trainer: TrainerConfig
    loader: Loader
    steps: Callable[..., CompiledSteps]
    work: MicroBatchWork
    lengths: dict[str, int] = field(default_factory=dict)
    until: Until | None = None
    sets_rate: bool = False
    sets_schedule: bool = False
    summary: str = ""

    def updates_left(self, progress: Progress) -> int | None:
        """Updates until the stage ends; None if it does not end by updates."""
        if self.until is None or self.until.unit != "updates":
            return None
        return self.until.number - (progress.updates or 0)

    def rate_of_epoch(self, epoch: int) -> np.float32 | None:
        """Learning rate of an epoch of a schedule by epoch; None under others.

        Epochs of a curriculum have different numbers of batches, so that the number of
        batches does not give the epoch.
        """
        schedule, base = self.trainer.schedule, self.trainer.learning_rate
        if schedule is None or not schedule.by_epoch:
            return None
        return np.float32(np.asarray(schedule.rate(base, epoch, jnp)))


def stage_at(stages: Sequence[Stage], progress: Progress) -> int:
    """Index of the stage that trains next from a position."""
    for index, stage in enumerate(stages):
        if stage.until is None:
            return index
        by_updates = stage.until.unit == "updates"
        done = (progress.updates or 0) if by_updates else progress.epoch
        if done < stage.until.number:
            return index
    raise AssertionError("`check_order` lets the last stage end with the run")


def entered(
    progress: Progress, stages: Sequence[Stage], index: int, micro_step: int
) -> Progress:
    """The position with the learning rate and the records that a stage begins with.

    Within a stage nothing changes. A rate that is part of the run's state, and the
    state of `plateau`, go on over stages, except that a stage that gives a rate or a
    schedule begins with it. The best result is forgotten if it is one of training, as
    the losses of different stages are not comparable.

    Args:
        progress: the position.
        stages: all stages; a single one is a run without curriculum.
        index: the stage that trains next.
        micro_step: micro-batches seen.
    """
    if len(stages) == 1:
        return progress
    trainer, previous = stages[index].trainer, progress.stage
    first = 0 if previous is None or previous > index else previous + 1
    passed = stages[first : index + 1]
    changes: dict[str, Any] = {"stage": index}
    if any(stage.sets_schedule for stage in passed):
        start = {"schedule_epoch": progress.epoch, "schedule_step": micro_step}
        changes |= {"plateau": None, **start}
    if passed and previous is not None and trainer.training_metric.startswith("train_"):
        best = ("best_metric", "best_epoch", "best_step")
        changes |= dict.fromkeys(("plateau", *best))
    after = dataclasses.replace(progress, **changes)
    begins = any(stage.sets_rate or stage.sets_schedule for stage in passed)
    rate = None
    if trainer.keeps_rate:
        rate = after.learning_rate
        if begins or trainer.update_learning_rate or rate is None:
            rate = trainer.learning_rate
    by_plateau = isinstance(trainer.schedule, PlateauConfig)
    plateau = (after.plateau or PlateauState()) if by_plateau else None
    return dataclasses.replace(after, learning_rate=rate, plateau=plateau)


def rate_of(trainer: TrainerConfig) -> str:
    """The learning rate of a stage in words: a number, or its schedule."""
    schedule, rate = trainer.schedule, f"{trainer.learning_rate:g}"
    return rate if schedule is None else f"{rate} {schedule.scheduler_type}"


def summary_of(config: Config) -> str:
    """The settings of a stage in words.

    Args:
        config: config of the stage.
    """
    trainer, steps = config.trainer, config.data.forecast_len
    parts = [
        f"forecast_len {steps}",
        f"backprop {trainer.backprop}" if steps > 1 else "",
        f"learning rate {rate_of(trainer)}",
        f"batch size {trainer.train_batch_size}",
        f"accumulation {trainer.grad_accum_every}",
        f"loss {config.loss.name}",
    ]
    return ", ".join(part for part in parts if part)
