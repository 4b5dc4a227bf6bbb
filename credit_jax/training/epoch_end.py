"""The end of an epoch: sums for its row in the log, validation, position of the run."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from credit_jax.checkpoint import PlateauState, Progress
from credit_jax.config.schedules import PlateauConfig
from credit_jax.config.trainer import TrainerConfig
from credit_jax.data import Batch, Loader
from credit_jax.io.activity import activity
from credit_jax.nn.context import Noise
from credit_jax.training.display import Display
from credit_jax.training.loggers import LogRow, logged_metrics
from credit_jax.training.rollout import SUSPICION
from credit_jax.training.setup import CompiledSteps, num_batches
from credit_jax.training.state import TrainState


def progress_after(
    trainer: TrainerConfig, progress: Progress, value: float | None, micro_step: int
) -> Progress:
    """The position after an epoch; `value` is of the training metric, if measured."""
    config, rate, plateau = trainer.scheduler, progress.learning_rate, progress.plateau
    if plateau is not None and rate is not None:
        assert isinstance(config, PlateauConfig), "`start_of_run` sets it for that"
        metric = math.nan if value is None else value
        plateau, rate = plateau_after(config, plateau, rate, metric)
    after = dataclasses.replace(
        progress,
        learning_rate=rate,
        plateau=plateau,
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
    """State and rate of PyTorch's ReduceLROnPlateau after one more epoch."""
    sign = 1.0 if config.mode == "max" else -1.0
    if state.best is None:
        bound = -sign * math.inf
    elif config.threshold_mode == "rel":
        bound = state.best * (1.0 + sign * config.threshold)
    else:
        bound = state.best + sign * config.threshold
    better = value > bound if config.mode == "max" else value < bound
    bad, cooldown = 0 if better else state.bad_epochs + 1, state.cooldown
    if cooldown > 0:
        bad, cooldown = 0, cooldown - 1
    if bad > config.patience:
        lower = max(rate * config.factor, config.min_lr)
        rate = lower if rate - lower > config.eps else rate
        bad, cooldown = 0, config.cooldown
    best = value if better else state.best
    return PlateauState(state.epochs + 1, best, bad, cooldown), rate


@dataclass
class EpochNumbers:
    """Losses, further measured values, waiting times, and the number of bad samples."""

    losses: list[float] = field(default_factory=list)  # losses of each micro-batch
    # Further measured values by name, summed over the micro-batches.
    sums: dict[str, float] = field(default_factory=dict)
    # Seconds that each update of this process waited for data.
    waits: list[float] = field(default_factory=list)
    num_bad: int = 0  # bad samples that were replaced by others
    # Time at which the first update was finished, by `time.monotonic`.
    since: float | None = None

    def add(self, losses: np.ndarray, measured: Mapping[str, Any]) -> None:
        """Adds the losses of an update and what else was measured, (k,) arrays."""
        self.losses += losses.tolist()
        self.since = self.since or time.monotonic()
        for name, values in jax.device_get(dict(measured)).items():
            self.sums[name] = self.sums.get(name, 0.0) + float(np.sum(values))

    @property
    def means(self) -> dict[str, float]:
        """What was measured besides the loss, averaged over the micro-batches."""
        return {name: total / len(self.losses) for name, total in self.sums.items()}

    def row(self, valid: Mapping[str, float], chosen: bool | Sequence[str]) -> LogRow:
        """The columns of training and validation in the log, of `chosen` variables."""
        return {
            "train_loss": float(np.mean(self.losses)) if self.losses else math.nan,
            **{
                f"{phase}_{name}": value
                for phase, metrics in (("train", self.means), ("valid", valid))
                for name, value in logged_metrics(metrics, chosen).items()
            },
        }

    @property
    def wait_percent(self) -> float:
        """Share of the time since the first update in which one waited for data, %."""
        elapsed = time.monotonic() - (self.since or time.monotonic())
        return 100 * sum(self.waits[1:]) / elapsed if elapsed > 0 else 0.0


def validate(
    trainer: TrainerConfig,
    steps: CompiledSteps,
    loader: Loader | None,
    state: TrainState,
    display: Display,
    *,
    epoch: int,
    last: int,
    seen: Callable[[Batch], None],
) -> dict[str, float]:
    """Loss and metrics, averaged over batches as CREDIT does; {} without validation."""
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
            suspicion = int(values.pop(SUSPICION, 0))
            if suspicion > 1:
                batch = loader.again(batch, is_suspect=True)
                values = steps.evaluate(*weights, steps.place_valid(batch), noise)
                values.pop(SUSPICION)
            elif suspicion:
                loader.note(batch)
            for name, value in values.items():
                collected.setdefault(name, []).append(float(value))
        seen(batch)
        display.advance(1, len(batch.indices) * jax.process_count())
    return {name: float(np.mean(values)) for name, values in collected.items()}
