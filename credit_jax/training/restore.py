"""The start of a run, and training states from and to checkpoints."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from credit_jax.checkpoint import (
    ADAPTERS,
    EMA,
    EMA_STATS,
    LOSS,
    LOSS_SCALE,
    OPTIMIZER,
    WEIGHTS,
    CheckpointStore,
    PlateauState,
    Progress,
)
from credit_jax.checkpoint.run import check_channels
from credit_jax.config.schedules import PlateauConfig
from credit_jax.config.trainer import TrainerConfig
from credit_jax.nn.low_rank import LowRank, is_adapter, merged
from credit_jax.nn.parameters import COLLECTIONS, wide_statistics
from credit_jax.parallel.params.packing import Packing, pack_tree, unpack_on_host
from credit_jax.parallel.params.spec import ParamSpec, trainable
from credit_jax.training.optimizer import LossScale
from credit_jax.training.state import LossState, TrainState

# Items that a checkpoint of another run may lack.
_OPTIONAL = frozenset({EMA, EMA_STATS, LOSS_SCALE, LOSS})
# Fields of a state in the item of the optimizer, beside its own state.
_COUNTS = ("micro_step", "update_step", "key")
_STORED = {"opt_state": "stored_opt_state"}


@dataclass(frozen=True)
class RunStore:
    """Saves and restores the training states of one model."""

    checkpoints: CheckpointStore
    param_specs: Mapping[str, ParamSpec]  # specs of the model's parameters
    # Fields of `Progress` that say what the run is; channels and units are compared.
    recorded: Mapping[str, Any] = field(default_factory=dict)
    # Adapters of the model. Weights and average in a checkpoint are those of the model
    # without them, with the sums: whatever reads it needs to know nothing of adapters.
    low_rank: LowRank | None = None

    def save(self, step: int, state: TrainState, progress: Progress) -> None:
        """Starts to write a checkpoint; see `CheckpointStore.save`."""
        progress = dataclasses.replace(progress, **self.recorded)
        self.checkpoints.save(step, self.items_of(state), progress)

    def items_of(self, state: TrainState) -> dict[str, PyTree]:
        """The items of a checkpoint (`credit_jax.checkpoint`), nothing packed."""
        items: dict[str, PyTree] = {
            WEIGHTS: {"params": state.stored_params, **state.model_state},
            OPTIMIZER: {"opt_state": state.stored_opt_state}
            | {name: getattr(state, name) for name in _COUNTS},
        }
        if state.stored_ema is not None:
            items[EMA] = {**state.stored_params, **state.stored_ema}
        if state.ema_stats:
            items[EMA_STATS] = state.ema_stats
        if state.loss_scale is not None:
            items[LOSS_SCALE] = dict(vars(state.loss_scale))
        if state.loss_state is not None:
            items[LOSS] = dict(vars(state.loss_state))
        items = unpack_on_host(items, Packing.of(self.param_specs))
        if (low_rank := self.low_rank) is None:
            return items
        # With the sums of matrices and adapters, and an item of these.
        params, specs = items[WEIGHTS]["params"], self.param_specs
        adapters = {
            "base": {path: params[path] for path in low_rank.targets},
            "weights": {p: x for p, x in params.items() if is_adapter(p)},
        }
        full = merged(params, low_rank, specs)
        sums = {**items, WEIGHTS: {**items[WEIGHTS], "params": full}}
        if EMA in items:
            sums[EMA] = merged(items[EMA], low_rank, specs)
            adapters[EMA] = {p: x for p, x in items[EMA].items() if is_adapter(p)}
        return {**sums, ADAPTERS: adapters}

    def without_sums(self, items: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """The items with matrices and adapters in place of their sums."""
        if ADAPTERS not in items:
            return dict(items)
        adapters, weights = items[ADAPTERS], items[WEIGHTS]
        base = adapters["base"]
        parts = dict(items)
        params = {**weights["params"], **base, **adapters["weights"]}
        parts[WEIGHTS] = {**weights, "params": params}
        if EMA in items:
            parts[EMA] = {**items[EMA], **base, **adapters[EMA]}
        return parts

    def check_fits(self, step: int, state: TrainState, *, resume: bool) -> None:
        """Checks that a checkpoint can be restored, without reading arrays."""
        items = self.items_of(state)
        for optional in _OPTIONAL:
            items.pop(optional, None)
        if not resume:
            del items[OPTIMIZER]
        self.checkpoints.check_fits(step, items)
        self._check_channels(step)

    def _check_channels(self, step: int) -> None:
        channels, units = (self.recorded.get(key) for key in ("channels", "units"))
        check_channels(self.checkpoints, step, channels, units or {})

    def restore(
        self,
        step: int,
        state: TrainState,
        *,
        optimizer: bool = True,
        position: bool = True,
    ) -> TrainState:
        """`state` with the weights, the average and further parts of a checkpoint.

        Args:
            step: step of the checkpoint.
            state: a fresh state, with the shapes and shardings of the result.
            optimizer: whether to take the state of the optimizer, and the trained
                parameters of the loss.
            position: whether to take the micro-batches seen and the loss scale.
        """
        self._check_channels(step)
        targets, stored = self.items_of(state), self.checkpoints.item_names(step)
        if not optimizer:
            del targets[OPTIMIZER]
            targets.pop(LOSS, None)
        if not position:
            targets.pop(LOSS_SCALE, None)
        for optional in _OPTIONAL.difference(stored):
            targets.pop(optional, None)
        items = self.without_sums(self.checkpoints.restore(step, targets))
        weights: Mapping[str, Any] = items[WEIGHTS]
        of_optimizer: Mapping[str, Any] = items.get(OPTIMIZER, {})
        fields: dict[str, Any] = {
            "stored_params": weights["params"],
            "model_state": {name: weights[name] for name in COLLECTIONS},
            **{_STORED.get(name, name): x for name, x in of_optimizer.items()},
        }
        if state.stored_ema is not None:
            # An average that begins in this run begins with the restored weights.
            averaged = trainable(items.get(EMA, weights["params"]), self.param_specs)
            if EMA not in items:
                averaged = jax.tree.map(jnp.copy, averaged)
            fields["stored_ema"] = averaged
            fields["ema_stats"] = items.get(EMA_STATS, wide_statistics(weights))
        like = {name: getattr(state, name) for name in fields}
        fields = pack_tree(fields, like, Packing.of(self.param_specs))
        if LOSS_SCALE in items:
            fields["loss_scale"] = LossScale(**items[LOSS_SCALE])
        if LOSS in items:
            fields["loss_state"] = LossState(**items[LOSS])
        if not position:
            fields.pop("micro_step", None)
        elif not optimizer:
            fields["micro_step"] = self._count(step, "micro_step", state)
        if EMA in items and not optimizer and OPTIMIZER in stored:
            fields["update_step"] = self._count(step, "update_step", state)
        return dataclasses.replace(state, **fields)

    def _count(self, step: int, name: str, state: TrainState) -> jax.Array:
        """A count stored with the optimizer, with the sharding of that of `state`."""
        count = self.checkpoints.read_array(step, OPTIMIZER, name)
        return jax.device_put(count, getattr(state, name).sharding)


FRESH = Progress()


@dataclass(frozen=True)
class Start:
    """The beginning of a run."""

    state: TrainState
    progress: Progress
    # The checkpoint that both come from; None for fresh weights.
    step: int | None = None

    @property
    def micro_step(self) -> int:
        """Micro-batches seen; does not block on the initialization of fresh weights."""
        return 0 if self.step is None else int(self.state.micro_step)


def start_of_run(
    trainer: TrainerConfig, store: RunStore, state: TrainState, *, resume: bool
) -> Start:
    """Fresh weights, or parts of a checkpoint that `--resume` and `load_*` ask for."""
    fresh = Progress(epoch=trainer.start_epoch, updates=0)
    if not (resume or trainer.load_weights):
        if trainer.sets_first_rate:
            fresh = dataclasses.replace(fresh, first_rate_at=0)
        return Start(state, _with_rate(fresh, trainer))
    step = required_step(store.checkpoints, resume=resume)
    saved = store.checkpoints.progress(step)
    if resume:
        progress = _with_rate(saved, trainer, optimizer=saved, schedule=saved)
        return Start(store.restore(step, state), progress, step)
    progress = saved if trainer.reload_epoch else fresh
    # As in CREDIT, `load_weights` alone takes weights and their average,
    # `load_optimizer` the optimizer; with any of these keys the positions of schedule,
    # loss scaling and curriculum come, too, unless the first epoch is 0.
    everything = trainer.load_optimizer or trainer.load_scaler or trainer.load_scheduler
    position = everything and progress.epoch > 0
    state = store.restore(
        step, state, optimizer=trainer.load_optimizer, position=position
    )
    if not position:
        progress = dataclasses.replace(progress, first_rate_at=None)
    # The stages of a curriculum begin anew with fresh optimizers and schedules.
    names = ("updates", "stage", "schedule_epoch", "schedule_step")
    reached = saved if position else fresh
    progress = dataclasses.replace(progress, **{k: getattr(reached, k) for k in names})
    # A constant rate, and that of `plateau`, comes with the optimizer, except with
    # `update_learning_rate`; under schedules by batch that key sets the first rate.
    if trainer.sets_first_rate:
        progress = dataclasses.replace(progress, first_rate_at=int(state.micro_step))
    progress = _with_rate(
        progress,
        trainer,
        optimizer=saved if trainer.load_optimizer else fresh,
        schedule=saved if position else fresh,
    )
    return Start(state, progress, step)


def _with_rate(
    progress: Progress,
    trainer: TrainerConfig,
    *,
    optimizer: Progress = FRESH,
    schedule: Progress = FRESH,
) -> Progress:
    """The progress with the rate and the plateau that the run begins with."""
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


def required_step(store: CheckpointStore, *, resume: bool) -> int:
    """Returns the step of the newest undamaged checkpoint, which an option asks for."""
    why = "--resume" if resume else "trainer.load_weights: true"
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
