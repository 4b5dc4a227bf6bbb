"""What the training loop works with: functions, logs, checkpoints, grouped batches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from credit_jax.data import Batch, Loader
from credit_jax.io.activity import activity
from credit_jax.training.display import Display
from credit_jax.training.profile import Profile
from credit_jax.training.records import StepRecords, Tracker
from credit_jax.training.restore import RunStore
from credit_jax.training.state import TrainState


@dataclass(frozen=True)
class CompiledSteps:
    """The compiled functions of a run."""

    # (state, placed micro-batches, learning rate or None for that of the schedule,
    # whether to proceed) -> (state, {"loss": (k,), "grad_norm", "learning_rate",
    # "measured", "proceed"}), see `make_train_step`.
    train: Callable[..., tuple[TrainState, dict[str, Any]]]
    # 1 or 2 -> whether the first update is to proceed, on the mesh.
    proceed: Callable[[int], Any]
    # (params, model_state) -> the same with spectral norm fused into params, for many
    # forwards (`ParallelModel.fuse_spectral_norm`).
    fuse: Callable[[Any, Any], tuple[Any, Any]]
    # (params, model_state, placed batch, noise) -> {"loss", "rmse", ...}; None where
    # nothing is validated.
    evaluate: Callable[..., dict[str, Any]] | None
    # Micro-batches of one update -> arrays on the mesh.
    place_train: Callable[[Sequence[Batch]], Any]
    place_valid: Callable[[Batch], Any]  # one batch -> arrays on the mesh
    # Micro-batches seen at the end of an epoch -> learning rate that CREDIT logs then.
    learning_rate: Callable[[int], float]


@dataclass(frozen=True)
class Loggers:
    """Everything that a run writes to."""

    store: RunStore  # checkpoints of the model
    display: Display  # progress on the console
    # Of the rows of epochs, the CSV file first; the first process alone has them.
    trackers: Sequence[Tracker] = ()
    records: StepRecords | None = None  # of steps, which the trackers get, too
    profile: Profile | None = None  # trace of some updates; None for none

    def close(self) -> None:
        """Ends the trace and the logs; the checkpoints stay open."""
        if self.profile:
            self.profile.close()
            if note := self.profile.note:
                self.display.message(note)
        if self.records:
            self.records.close()


def num_batches(loader: Loader, cap: int) -> int:
    """Batches of an epoch: all of the loader's, or at most `cap` if it is not 0."""
    return min(cap, loader.num_batches) if cap else loader.num_batches


def batches_left(loader: Loader, cap: int, done: int) -> int:
    """Batches of an epoch after some of its samples; see `num_batches`.

    Args:
        loader: loader of the training.
        cap: batches of a whole epoch, if it is not 0.
        done: samples of all data-parallel ranks.
    """
    left, size = loader.sampler.batches_left(done), loader.sampler.samples_per_batch
    return min(left, max(cap * size - done, 0) // size) if cap else left


def grouped(batches: Iterator[Batch], size: int) -> Iterator[list[Batch]]:
    """Yields the micro-batches of each update; the last group may be smaller."""
    while group := list(itertools.islice(batches, size)):
        yield group


def with_wait(
    groups: Iterator[list[Batch]],
) -> Iterator[tuple[list[Batch], float]]:
    """Yields each group with the seconds that the step waited for it."""
    while True:
        began = time.monotonic()
        with activity("reading a batch"):
            group = next(groups, None)
        if group is None:
            return
        yield group, time.monotonic() - began
