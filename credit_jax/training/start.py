"""The start of a run: fresh weights, or parts of a checkpoint chosen by the config."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from credit_jax.checkpoint import CheckpointStore, PlateauState, Progress
from credit_jax.config.schedules import PlateauConfig
from credit_jax.config.trainer import TrainerConfig
from credit_jax.training.restore import RunStore
from credit_jax.training.state import TrainState

FRESH = Progress()


@dataclass(frozen=True)
class Start:
    """The beginning of a run.

    Attributes:
        state: the training state.
        progress: position of the run.
        step: the checkpoint that both come from; None for fresh weights.
    """

    state: TrainState
    progress: Progress
    step: int | None = None

    @property
    def micro_step(self) -> int:
        """Micro-batches seen; does not block on the initialization of fresh weights."""
        return 0 if self.step is None else int(self.state.micro_step)


def start_of_run(
    trainer: TrainerConfig, store: RunStore, state: TrainState, *, resume: bool
) -> Start:
    """Returns fresh weights, or the parts of a checkpoint that the options request.

    The options are `--resume` and CREDIT's `load_*` keys. `--resume` continues at the
    position of the newest checkpoint. `load_weights` alone takes its weights and their
    average, with a fresh optimizer and schedule. Together with `load_optimizer` it
    takes the optimizer, too, and with any of `load_optimizer`, `load_scaler` and
    `load_scheduler` the positions of schedule and loss scaling, unless the first epoch
    is 0. The epoch is `start_epoch`, or that of the checkpoint with `reload_epoch`.
    The stage of `trainer.curriculum` comes with these positions.

    A constant rate, and that of `plateau`, comes with the optimizer, except with
    `update_learning_rate`. Under schedules by batch that key sets the rate of the first
    micro-batch, except with `--resume`.

    Args:
        trainer: the trainer section.
        store: checkpoints of `save_loc`.
        state: a fresh state on the mesh of this run.
        resume: whether `--resume` was given.

    Raises:
        FileNotFoundError: there is no checkpoint to continue from.
        ValueError: it does not fit the model.
    """
    fresh = Progress(epoch=trainer.start_epoch, updates=0)
    if not (resume or trainer.load_weights):
        return Start(state, _with_rate(_with_first_rate(fresh, trainer, 0), trainer))
    step = required_step(store.checkpoints, asked_by(resume=resume))
    saved = store.checkpoints.progress(step)
    if resume:
        progress = _with_rate(saved, trainer, optimizer=saved, schedule=saved)
        return Start(store.restore_all(step, state), progress, step)
    progress = saved if trainer.reload_epoch else fresh
    everything = trainer.load_optimizer or trainer.load_scaler or trainer.load_scheduler
    position = everything and progress.epoch > 0
    state = store.restore_parts(
        step, state, optimizer=trainer.load_optimizer, position=position
    )
    if not position:
        progress = dataclasses.replace(progress, first_rate_at=None)
    # The stages of a curriculum begin anew with fresh optimizers and schedules.
    names = ("updates", "stage", "schedule_epoch", "schedule_step")
    reached = saved if position else fresh
    progress = dataclasses.replace(progress, **{k: getattr(reached, k) for k in names})
    progress = _with_first_rate(progress, trainer, int(state.micro_step))
    progress = _with_rate(
        progress,
        trainer,
        optimizer=saved if trainer.load_optimizer else fresh,
        schedule=saved if position else fresh,
    )
    return Start(state, progress, step)


def _with_first_rate(
    progress: Progress, trainer: TrainerConfig, micro_step: int
) -> Progress:
    """The progress that sets the rate of the run's first micro-batch, if it is set."""
    if not trainer.sets_first_rate:
        return progress
    return dataclasses.replace(progress, first_rate_at=micro_step)


def _with_rate(
    progress: Progress,
    trainer: TrainerConfig,
    *,
    optimizer: Progress = FRESH,
    schedule: Progress = FRESH,
) -> Progress:
    """The progress with the rate and the plateau that the run begins with.

    Args:
        progress: position of the run.
        trainer: the trainer section.
        optimizer: optimizer of the checkpoint whose optimizer is loaded, and so its
            rate.
        schedule: schedule of the checkpoint whose schedule is loaded.
    """
    if not trainer.keeps_rate:
        return dataclasses.replace(progress, learning_rate=None, plateau=None)
    rate = None if trainer.update_learning_rate else optimizer.learning_rate
    state = schedule.plateau or PlateauState()
    return dataclasses.replace(
        progress,
        learning_rate=trainer.learning_rate if rate is None else rate,
        plateau=state if isinstance(trainer.schedule, PlateauConfig) else None,
    )


def last_epoch(trainer: TrainerConfig, first: int) -> int:
    """The end of the epochs that an invocation trains; the first one is `first`."""
    if trainer.train_one_epoch:
        return first + 1
    most = 1 if trainer.stop_after_epoch else trainer.num_epoch
    return min(trainer.epochs, first + most)


def epochs_note(trainer: TrainerConfig, first: int) -> str | None:
    """Says that an invocation trains fewer epochs than `trainer.epochs`, and why.

    >>> print(epochs_note(TrainerConfig(epochs=2, num_epoch=1), 0))
    trainer.num_epoch is 1: this trains epoch 1 of trainer.epochs 2; --resume goes on
    >>> print(epochs_note(TrainerConfig(epochs=2), 2))
    nothing is left to train: trainer.epochs is 2; --set trainer.epochs=3 goes on
    """
    last = last_epoch(trainer, first)
    if first >= last:
        return (
            f"nothing is left to train: trainer.epochs is {trainer.epochs}; --set "
            f"trainer.epochs={first + 1} goes on"
        )
    if last >= trainer.epochs:
        return None
    full = ("train_one_epoch", "stop_after_epoch")
    key = next(
        (f"{name} is true" for name in full if getattr(trainer, name)),
        f"num_epoch is {trainer.num_epoch}",
    )
    epochs = f"epoch {last}" if last == first + 1 else f"epochs {first + 1} to {last}"
    return (
        f"trainer.{key}: this trains {epochs} of trainer.epochs {trainer.epochs}; "
        "--resume goes on"
    )


def asked_by(*, resume: bool) -> str:
    """The option that requires a checkpoint, for error messages."""
    return "--resume" if resume else "trainer.load_weights: true"


def required_step(store: CheckpointStore, why: str) -> int:
    """Returns the step of the newest undamaged checkpoint.

    Raises:
        FileNotFoundError: there is none.
        ValueError: all are damaged.
    """
    if not store.steps():
        raise FileNotFoundError(
            f"{why} needs a checkpoint, but there is none in {store.folder}; train "
            "first, or give the save_loc of the run to go on with"
        )
    step = store.newest_whole_step()
    if step is None:
        raise ValueError(
            f"{why} needs a checkpoint, but all in {store.folder} are damaged:\n  "
            + "\n  ".join(store.damaged())
            + "\nTake them from a copy, or train anew"
        )
    return step
