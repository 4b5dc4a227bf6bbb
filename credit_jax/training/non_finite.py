"""The error of a loss or a gradient that is NaN or infinite."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from credit_jax.checkpoint import CheckpointStore, Progress
from credit_jax.data import Batch


class NonFiniteLossError(RuntimeError):
    """The loss or the gradient is NaN or infinite; the state was not saved."""


def check_finite(
    losses: Float[np.ndarray, " micro_batch"],
    norm: float,
    group: Sequence[Batch],
    *,
    micro_step: int,
    progress: Progress,
    checkpoints: CheckpointStore,
) -> None:
    """Checks the numbers of an update.

    Args:
        losses: losses of its micro-batches.
        norm: norm of its gradient.
        group: its micro-batches.
        micro_step: micro-batches seen before it.
        progress: position before it.
        checkpoints: checkpoints of the run; the error names the newest one.

    Raises:
        NonFiniteLossError: naming step and samples, and the newest checkpoint.
    """
    if np.isfinite(losses).all() and math.isfinite(norm):
        return
    bad = ~np.isfinite(losses)
    place = int(np.argmax(bad)) if bad.any() else len(group) - 1
    what = f"the loss is {losses[place]}"
    if not bad.any():
        what = f"the norm of the gradient is {norm}"
    raise NonFiniteLossError(
        f"{what} at step {micro_step + place + 1} (epoch {progress.epoch + 1}, batch "
        f"{progress.batches + place + 1}, samples of {_dates(group[place])}); training "
        f"has stopped. {_newest_checkpoint(checkpoints)} A lower "
        "trainer.learning_rate or a trainer.grad_max_norm of 1.0 may help."
    )


def _newest_checkpoint(checkpoints: CheckpointStore) -> str:
    checkpoints.wait()
    saved = checkpoints.latest_step()
    if saved is None:
        return "No checkpoint had been written yet."
    path = checkpoints.path(saved)
    return f"The newest checkpoint is {path}; --resume continues from it."


def _dates(batch: Batch) -> str:
    times = sorted(str(time)[:16] for time in batch.input_times)
    return times[0] if len(times) == 1 else f"{times[0]} to {times[-1]}"
