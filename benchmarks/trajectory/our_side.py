"""A training run of credit_jax with the initial weights of CREDIT's run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from benchmarks.meshes import num_devices, parse_mesh
from benchmarks.trajectory.noise import with_noise
from credit_jax.checkpoint import CheckpointStore
from credit_jax.config import load_config
from credit_jax.config.finetune import CurriculumStage
from credit_jax.data import Batch
from credit_jax.models.conversion import from_state_dict
from credit_jax.parallel.mesh.device_mesh import DOMAIN, DP_REPLICATE, DP_SHARD, TP
from credit_jax.plan import plan_run
from credit_jax.training.display import Display
from credit_jax.training.loggers import LOG_NAME, LogRow, csv_log, read_log
from credit_jax.training.loop import Loggers, TrainingLoop
from credit_jax.training.restore import RunStore, start_of_run
from credit_jax.training.setup import CompiledSteps, Setup, Stage, prepare
from credit_jax.transforms import Rollout
from tests.reference.start import start_of
from tests.reference.training import CreditRun


@dataclass
class Record:
    """The record of a run.

    Attributes:
        loss: one value of each micro-batch.
        gradient_norm, learning_rate: one value of each update.
        batch_error: largest |a - b| / max |b| of x and y of all micro-batches.
        rows: rows of the log, one an epoch.
        params: parameters after the last step, by path.
    """

    loss: list[float] = field(default_factory=list)
    gradient_norm: list[float] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    batch_error: float = 0.0
    rows: list[LogRow] = field(default_factory=list)
    params: dict[str, np.ndarray] = field(default_factory=dict)


def train_on(
    config_path: Path, mesh: str, run: CreditRun, folder: Path, spread: float = 0.0
) -> Record:
    """Trains to the last epoch with the loop of `credit-jax train`.

    Args:
        config_path: the YAML that CREDIT trained with; its data are in the working
            folder.
        mesh: such as "dp2xtp2xdomain2"; the global batch is the same on all.
        run: run of CREDIT, with the initial weights.
        folder: folder for checkpoints and log.
        spread: see `setup_on`.
    """
    setup = setup_on(config_path, mesh, spread)
    record = Record()
    store = RunStore(CheckpointStore(folder), setup.model.model_def.param_specs)
    display = Display(Console(quiet=True), silent=True)
    state = start_of(setup, from_state_dict(setup.model.model_def, run.initial))
    start = start_of_run(setup.plan.config.trainer, store, state, resume=False)
    steps = setup.steps(first_rate_at=start.progress.first_rate_at)
    watched = _watched(steps, setup, run, record)
    loop = TrainingLoop(
        [Stage(setup, CurriculumStage.model_validate({}), lambda **_: watched)],
        setup.valid_loader,
        Loggers(store, display, [csv_log(folder / LOG_NAME)]),
        start,
    )
    outcome = loop.run()
    store.checkpoints.close()
    record.rows = read_log(folder / LOG_NAME)
    record.params = jax.device_get(outcome.state.params)
    return record


def setup_on(config_path: Path, mesh: str, spread: float = 0.0) -> Setup:
    """The setup of a config on a mesh of the first devices.

    Args:
        config_path: the YAML.
        mesh: such as "dp2xtp2xdomain2".
        spread: standard deviation of noise that is added to predictions, see `noise`.
    """
    degrees = parse_mesh(mesh)
    dp = degrees.get(DP_SHARD, 1) * degrees.get(DP_REPLICATE, 1)
    parallelism = {
        "data": "fsdp2" if DP_SHARD in degrees else "none",
        "tensor": degrees.get(TP, 1),
        "domain": degrees.get(DOMAIN, 1),
    }
    overrides = [f"trainer.parallelism.{key}={n}" for key, n in parallelism.items()]
    config = load_config(config_path)
    for kind in ("train", "valid"):
        samples = getattr(config.trainer, f"{kind}_batch_size") // dp
        overrides.append(f"trainer.{kind}_batch_size={samples}")
    count = num_devices(mesh)
    plan = plan_run(load_config(config_path, overrides), num_devices=count)
    if spread and plan.model.model_def is not None:
        noisy = with_noise(plan.model.model_def, spread)
        model = dataclasses.replace(plan.model, model_def=noisy)
        plan = dataclasses.replace(plan, model=model)
    return prepare(plan, jax.devices()[:count])


def _watched(
    steps: CompiledSteps, setup: Setup, run: CreditRun, record: Record
) -> CompiledSteps:
    """The steps of a run, wrapped to record their inputs and outputs."""
    rollout, ranks = setup.plan.objective.rollout, setup.model.axes.num_data
    on_host, batches = dataclasses.replace(setup.train_loader, is_raw=False), 0

    def place_train(group: Sequence[Batch]) -> Any:
        nonlocal batches
        for batch in group:
            normalized = on_host.read(batch.indices)
            error = _batch_error(normalized, run, batches, rollout, ranks)
            record.batch_error = max(record.batch_error, error)
            batches += 1
        return steps.place_train(group)

    def train(*arguments: Any) -> Any:
        state, info = steps.train(*arguments)
        record.loss += np.ravel(info["loss"]).astype(float).tolist()
        record.gradient_norm.append(float(info["grad_norm"]))
        record.learning_rate.append(float(info["learning_rate"]))
        return state, info

    return dataclasses.replace(steps, place_train=place_train, train=train)


def _batch_error(
    batch: Batch, run: CreditRun, index: int, rollout: Rollout, ranks: int
) -> float:
    """Largest relative difference of x of the first step and y of all steps.

    Args:
        batch: batch of all data-parallel ranks, one rank's samples after another's.
        run: run of CREDIT in one process.
        index: index of the batch.
        rollout: rollout of the run.
        ranks: number of data-parallel ranks, which take samples in turn.
    """
    first = index * rollout.num_steps
    y = np.concatenate([*run.y[first : first + rollout.num_steps]], axis=2)
    # CREDIT repeats a sample for its members before the model takes it.
    x = run.x[first][:: rollout.num_members]
    errors = []
    for ours, theirs in ((batch.x, x), (batch.y, y)):
        samples = np.arange(len(theirs)).reshape(-1, ranks).T.ravel()
        away = np.abs(ours - theirs[samples]).max()
        errors.append(float(away / np.abs(theirs).max()))
    return max(errors)
