"""Between the state of a run and the items of a checkpoint."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from credit_jax.checkpoint import EMA, OPTIMISER, WEIGHTS, CheckpointStore, Progress
from credit_jax.config.trainer import TrainerConfig
from credit_jax.training.state import TrainState

_OPTIMISER_FIELDS = ("opt_state", "micro_step", "update_step", "key")


def items_of(state: TrainState) -> dict[str, PyTree]:
    """What a checkpoint holds of a state; see `credit_jax.checkpoint`."""
    items: dict[str, PyTree] = {
        WEIGHTS: {"params": state.params, "vectors": state.vectors},
        OPTIMISER: {name: getattr(state, name) for name in _OPTIMISER_FIELDS},
    }
    if state.ema is not None:
        items[EMA] = state.ema
    return items


def restore_all(store: CheckpointStore, step: int, state: TrainState) -> TrainState:
    """The state at a checkpoint, on the mesh of `state`.

    Args:
        store: the checkpoints.
        step: which one.
        state: a fresh state: its shapes and shardings are those of the result.
    """
    return _restored(store, step, state, with_optimiser=True)


def restore_weights(store: CheckpointStore, step: int, state: TrainState) -> TrainState:
    """`state` with the weights of a checkpoint, its optimiser as it is."""
    return _restored(store, step, state, with_optimiser=False)


def _restored(
    store: CheckpointStore, step: int, state: TrainState, *, with_optimiser: bool
) -> TrainState:
    wanted = items_of(state)
    has_ema = EMA in store.item_names(step)
    if not with_optimiser:
        del wanted[OPTIMISER]
    if not has_ema:
        wanted.pop(EMA, None)
    found = store.restore(step, wanted)
    changes: dict[str, Any] = dict(found[WEIGHTS]) | found.get(OPTIMISER, {})
    if state.ema is not None:
        # A run that begins to average starts from the weights that it has.
        average = found[EMA] if has_ema else found[WEIGHTS]["params"]
        changes["ema"] = jax.tree.map(jnp.copy, average)
    return dataclasses.replace(state, **changes)


@dataclasses.dataclass(frozen=True)
class Start:
    """Where a run begins.

    Attributes:
        state: weights and optimiser.
        progress: epoch and batch.
        step: the checkpoint it comes from; None for fresh weights.
    """

    state: TrainState
    progress: Progress
    step: int | None = None


def start_of_run(
    trainer: TrainerConfig, store: CheckpointStore, state: TrainState, *, resume: bool
) -> Start:
    """Fresh weights, or what `--resume` and CREDIT's `load_*` keys ask for.

    `--resume` goes on exactly where the newest checkpoint stands. `load_weights` alone
    takes its weights, with a fresh optimiser and schedule; together with one of
    `load_optimizer`, `load_scaler`, `load_scheduler` it takes everything. The epoch is
    `start_epoch`, or that of the checkpoint with `reload_epoch`.

    Args:
        trainer: the trainer section.
        store: checkpoints of `save_loc`.
        state: a fresh state on the mesh of this run.
        resume: whether `--resume` was given.

    Raises:
        FileNotFoundError: there is no checkpoint to go on from.
        ValueError: it does not fit the model.
    """
    if not (resume or trainer.load_weights):
        return Start(state, Progress(epoch=trainer.start_epoch))
    step = required_step(store, "--resume" if resume else "trainer.load_weights: true")
    saved = store.progress(step)
    if resume:
        return Start(restore_all(store, step, state), saved, step)
    everything = trainer.load_optimizer or trainer.load_scaler or trainer.load_scheduler
    restore = restore_all if everything else restore_weights
    fresh = Progress(epoch=trainer.start_epoch)
    progress = saved if trainer.reload_epoch else fresh
    return Start(restore(store, step, state), progress, step)


def required_step(store: CheckpointStore, asked_by: str) -> int:
    """The newest checkpoint.

    Raises:
        FileNotFoundError: there is none.
    """
    step = store.latest_step()
    if step is None:
        raise FileNotFoundError(
            f"{asked_by} needs a checkpoint, but there is none in {store.folder}; "
            "train first, or give the save_loc of the run to go on with"
        )
    return step
