"""What a run of a config gives on a mesh: all that it logs, and its last state.

The reference trains for two epochs. Every other mesh goes on from the first checkpoint
of the reference, within the first epoch where that has several updates, so that its
logs show the order of samples after a resume and in an epoch from its beginning.
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import optax
from rich.console import Console

from credit_jax.checkpoint import CheckpointStore
from credit_jax.checkpoint.artifact import Artifact
from credit_jax.checkpoint.run import open_run
from credit_jax.config import Config, build_config
from credit_jax.config.yaml_file import read_yaml
from credit_jax.extensions.certification.subject import (
    Arrays,
    checkpointed,
    dims_of,
    first_state,
    flat,
    of_first_update,
    of_run,
    placed_weights,
    recorded,
    wide,
)
from credit_jax.parallel.params.precision import Precision
from credit_jax.plan import plan_run
from credit_jax.training.display import Display
from credit_jax.training.loggers import LOG_NAME, RECORDS_NAME, read_records
from credit_jax.training.loop import TIME_COLUMNS, grouped
from credit_jax.training.run import run_training
from credit_jax.training.setup import CompiledSteps, Setup, prepare
from credit_jax.training.state import TrainState, init_loss_state

_EPOCHS = 2
# What a run of a certificate does not: its weights are given, its logs are read here.
_NOT_DONE = ("load_weights", "use_tensorboard", "use_wandb", "use_mlflow")
# Of the records of updates; others are about time and memory.
_RECORDED = ("epoch", "batch", "loss", "grad_norm", "learning_rate", "loss_scale")


def train_config(
    path: Path,
    mesh: str,
    devices: Sequence[Any],
    start: Arrays | None,
    folder: Path,
    reference: Path | None,
    *,
    is_wide: bool = False,
    in_dtype: bool | None = None,
) -> dict[str, Any]:
    """Trains a config on a mesh; returns fields of `Measured`."""
    mapping = read_yaml(path)
    # A run in float32 or float64, and one in the dtype of the config if that has 16
    # bits, of which the logs alone are measured.
    if in_dtype is None:
        trainer = build_config(mapping).trainer
        is_narrow = trainer.fp8 or trainer.mp_policy is not None
        kinds = (False, True) if is_narrow and not is_wide else (False,)
    else:
        kinds = (in_dtype,)
    numbers: dict[str, Any] = {}
    for kind in kinds:
        run = "run in its dtype" if kind else "run"
        first = None if reference is None else reference / run
        config = _config_on(mesh, mapping, folder / run, in_dtype=kind, saves=not first)
        num_devices = dims_of(mesh).world_size
        plan = plan_run(config, num_devices=num_devices, begins=False)
        setup = prepare(plan, devices[:num_devices])
        setup = CertifiedSetup.of(setup, start, is_wide=is_wide)
        if kind:
            _trained(setup, folder / run, first)
            numbers["logged_in_dtype"] = _logged(folder / run)
        else:
            numbers |= _first_updates(setup) | _numbers(setup, folder / run, first)
    return numbers


def _first_updates(setup: Setup) -> dict[str, Any]:
    """Fields of `Measured` of the first update of each stage, from the same state."""
    losses, numbers = [], dict[str, Any]()
    for stage in setup.stages or (setup,):
        trainer, steps = stage.plan.config.trainer, stage.steps()
        rate = np.float32(trainer.learning_rate) if trainer.keeps_rate else None
        group = next(grouped(stage.train_loader.epoch(0), trainer.grad_accum_every))
        placed = steps.place_train(group)
        state, info = steps.train(stage.fresh_state(), placed, rate, steps.proceed(1))
        losses.append(float(info["loss"].mean()))
        numbers = numbers or of_first_update(state)
    return numbers | {"losses": np.asarray(losses)}


def _trained(setup: CertifiedSetup, folder: Path, reference: Path | None) -> TrainState:
    """The last state of a run, which goes on from the reference if there is one."""
    setup.begun.clear()
    if reference is not None:
        # Copies a run as if it had been killed after its first checkpoint.
        store = CheckpointStore(reference, verify=False)
        first = store.path(store.steps()[0])
        store.close()

        def others(parent: str, names: Sequence[str]) -> list[str]:
            of_steps = Path(parent) == first.parent
            return [n for n in names if of_steps and n.isdigit() and n != first.name]

        shutil.copytree(reference, folder, ignore=others, dirs_exist_ok=True)
    display = Display(Console(file=StringIO()), silent=True)
    is_resumed = reference is not None
    return run_training(setup, folder, display, resume=is_resumed).state


def _numbers(
    setup: CertifiedSetup, folder: Path, reference: Path | None
) -> dict[str, Any]:
    """Fields of `Measured` of a run, its checkpoints and its logs."""
    state, model = _trained(setup, folder, reference), setup.model
    numbers = of_run(state, model, folder, setup.begun if reference else None)
    weights = open_run(reference or folder)
    # A checkpoint has the sums of weights and adapters.
    alone = replace(model, model_def=replace(model.model_def, low_rank=None))
    opened = flat(*weights.restore(alone))
    return numbers | {"logged": _logged(folder), "opened": opened}


@dataclass(frozen=True)
class CertifiedSetup(Setup):
    """A setup from given weights, whose optimizer records the gradient."""

    start: Arrays | None = None
    is_wide: bool = False
    # The state before the first update of any stage, as `checkpointed` gives it.
    begun: Arrays = field(default_factory=dict)
    _programs: dict[Any, CompiledSteps] = field(default_factory=dict)

    @classmethod
    def of(cls, setup: Setup, start: Arrays | None, *, is_wide: bool) -> CertifiedSetup:
        """The same setup, with the stages."""
        model, begun = setup.model, Arrays()
        if is_wide:
            precision = Precision.of("float64")
            config = replace(model.parallel_config, precision=precision)
            model = replace(model, parallel_config=config)
        stages = tuple(
            replace(cls.of(stage, start, is_wide=is_wide), begun=begun)
            for stage in setup.stages
        )
        loaders = setup.train_loader, setup.valid_loader
        return cls(setup.plan, model, *loaders, stages, start, is_wide, begun)

    @cached_property
    def optimizer(self) -> optax.GradientTransformation:
        return recorded(super().optimizer)

    def steps(
        self, *, first_rate_at: int | None = None, schedule_step: int = 0
    ) -> CompiledSteps:
        """The functions of a position, compiled once."""
        key = first_rate_at, schedule_step
        if key not in self._programs:
            steps = super().steps(
                first_rate_at=first_rate_at, schedule_step=schedule_step
            )

            def train(state: TrainState, *arguments: Any) -> Any:
                if not self.begun:
                    self.begun.update(checkpointed(state))
                return steps.train(state, *arguments)

            self._programs[key] = replace(steps, train=train)
        return self._programs[key]

    def fresh_state(self, base: Artifact | None = None) -> TrainState:
        if self.start is None:
            state = super().fresh_state(base)
        else:
            state = first_state(
                self.model,
                self.optimizer,
                placed_weights(self.model, self.start),
                seed=self.plan.config.seed,
                ema=self.plan.config.trainer.use_ema,
                loss_state=init_loss_state(
                    self.plan.objective.loss, self.loss_optimizer
                ),
            )
        return wide(state) if self.is_wide else state

    def _placed(self, arrays: dict[str, Any], *, shared: bool = False) -> Any:
        arrays = wide(arrays) if self.is_wide else arrays
        return super()._placed(arrays, shared=shared)


def _config_on(
    mesh: str, mapping: Mapping[str, Any], folder: Path, *, in_dtype: bool, saves: bool
) -> Config:
    """The config of a certificate, whose batches are those of one device, on a mesh."""
    trainer, dims = dict(mapping["trainer"]), dims_of(mesh)
    shared = build_config(mapping).shares_batches
    ranks = {"train": 1 if shared else dims.batch_size, "valid": dims.batch_size}
    data = "fsdp2" if dims.dp_shard > 1 else "ddp" if dims.batch_size > 1 else "none"
    trainer |= {
        "parallelism": {
            "data": data,
            "dp_replicate": dims.dp_replicate,
            "dp_shard": dims.dp_shard,
            "ep": dims.ep,
            "etp": dims.etp,
            "tensor": dims.tp,
            "domain": dims.domain,
            "ulysses_degree": dims.ulysses_degree,
        },
        "num_devices": dims.world_size,
        "epochs": _EPOCHS,
        "num_epoch": _EPOCHS,
        "save_every_steps": 2 if saves else None,
        "stopping_patience": _EPOCHS,
        **dict.fromkeys(_NOT_DONE, False),
        **{
            f"{split}_batch_size": trainer[f"{split}_batch_size"] // count
            for split, count in ranks.items()
        },
    }
    if not in_dtype:
        trainer |= {"amp": False, "fp8": False}
        trainer.pop("fsdp2_mp_policy", None)
    return build_config({**mapping, "trainer": trainer, "save_loc": str(folder)})


def _logged(folder: Path) -> Arrays:
    """The numbers of the logs by their place."""
    numbers: dict[str, Any] = {}
    with (folder / LOG_NAME).open() as file:
        for row in csv.DictReader(file):
            numbers |= {
                f"{name} of epoch {row['epoch']}": value
                for name, value in row.items()
                if name not in TIME_COLUMNS and value
            }
    for record in read_records(folder / RECORDS_NAME):
        names = [n for n in _RECORDED if record.get(n) is not None and "loss" in record]
        numbers |= {f"{n} at step {record['step']}": record[n] for n in names}
    return {name: np.asarray(value, float) for name, value in numbers.items()}
