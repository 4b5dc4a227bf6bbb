"""Sums over the training batches of an epoch, for its row in the log."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from credit_jax.checkpoint import Progress
from credit_jax.training.loggers import Row, logged_metrics


@dataclass
class EpochNumbers:
    """Losses, further measured values, waiting times, and the number of bad samples.

    Attributes:
        losses: losses of each micro-batch.
        sums: further measured values by name, summed over the micro-batches.
        waits: seconds that each update of this process waited for data.
        num_bad: bad samples that were replaced by others.
    """

    losses: list[float] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)
    num_bad: int = 0

    @staticmethod
    def of(progress: Progress) -> EpochNumbers:
        """Restores the numbers from a position within an epoch, where a run resumes."""
        return EpochNumbers(list(progress.epoch_losses), dict(progress.epoch_sums))

    def add(self, losses: np.ndarray, measured: Mapping[str, Any]) -> None:
        """Adds an update.

        Args:
            losses: (k,) of its micro-batches.
            measured: (k,) arrays by name.
        """
        self.losses += losses.tolist()
        for name, values in jax.device_get(dict(measured)).items():
            self.sums[name] = self.sums.get(name, 0.0) + float(np.sum(values))

    @property
    def means(self) -> dict[str, float]:
        """What was measured besides the loss, averaged over the micro-batches."""
        return {name: total / len(self.losses) for name, total in self.sums.items()}

    def row(self, valid: Mapping[str, float], chosen: bool | Sequence[str]) -> Row:
        """The columns of training and validation in the log.

        Args:
            valid: loss and metrics of the validation.
            chosen: variables whose metrics are logged, see `logged_metrics`.
        """
        return {
            "train_loss": float(np.mean(self.losses)) if self.losses else math.nan,
            **{
                f"{phase}_{name}": value
                for phase, metrics in (("train", self.means), ("valid", valid))
                for name, value in logged_metrics(metrics, chosen).items()
            },
        }

    @property
    def mean_wait(self) -> float:
        """Seconds that an update waited for data."""
        return float(np.mean(self.waits)) if self.waits else 0.0
