"""Runs of both sides that go on from one checkpoint, step by step."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml

from credit_jax.checkpoint import CheckpointStore
from credit_jax.config import load_config
from credit_jax.plan import plan_run
from credit_jax.training.restore import RunStore
from credit_jax.training.setup import prepare
from credit_jax.training.start import start_of_run

ROOT = Path(__file__).parents[2]
# Largest relative error of a loss.
LOSS = 1e-5


@dataclass
class JaxRun:
    """The training step of a run, compiled once for all that goes on from it.

    Attributes:
        folder: of the run, or of one like it, with its `model.yml`.
        num_steps: micro-batches of an epoch. CREDIT trains the first one after a resume
            at the schedule's first rate, and so does this step.
    """

    folder: Path
    num_steps: int
    store: CheckpointStore = field(init=False)

    def __post_init__(self) -> None:
        config = load_config(self.folder / "model.yml")
        plan = plan_run(config)
        plan.check()
        self.setup = prepare(plan, jax.devices()[:1])
        self.steps = self.setup.steps(first_rate_at=self.num_steps)

    def start(self, folder: Path) -> Any:
        """Returns the state that `--resume` restores."""
        self.store = CheckpointStore(folder)
        runs = RunStore(self.store, self.setup.model_def.param_specs)
        fresh = self.setup.fresh_state()
        return start_of_run(self.setup.config.trainer, runs, fresh, resume=True)

    def train(
        self, state: Any, epoch: int, x: np.ndarray | None = None
    ) -> tuple[np.ndarray, Any]:
        """Returns the losses of an epoch, and the new state.

        Args:
            state: of the training.
            epoch: number of the epoch, from 0.
            x: inputs of the batches of CREDIT, which must be ours.
        """
        losses: list[float] = []
        size = self.setup.config.trainer.grad_accum_every
        batches = islice(self.setup.train_loader.epoch(epoch), self.num_steps)
        while group := list(islice(batches, size)):
            for index, batch in enumerate(group, len(losses)):
                same = x is None or np.array_equal(batch.x, x[index])
                assert same, "another batch than CREDIT's"
            state, info = self.steps.train(state, self.steps.place_train(group))
            losses += map(float, info["loss"])
        return np.array(losses), state

    def save(self, folder: Path, state: Any, progress: Any) -> None:
        """Writes a checkpoint as the training loop does."""
        store = CheckpointStore(folder)
        runs = RunStore(store, self.setup.model_def.param_specs)
        runs.save(int(state.micro_step), state, progress)
        store.close()


def follow(losses: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Asserts that every loss is within `LOSS` of CREDIT's."""
    assert len(losses) == len(expected)
    errors = abs(losses - expected) / expected
    print(f"{what}: largest of {len(losses)} relative errors {errors.max():.1e}")
    assert errors.max() < LOSS, f"{what}: {losses} against {expected}"


def credit_goes_on(folder: Path, data: Path) -> tuple[Any, str]:
    """Trains the second epoch of a run of CREDIT.

    Args:
        folder: of the run, with a `model.yml` that has CREDIT's `load_*` keys.
        data: working folder, from which the paths of the data start.

    Returns:
        CREDIT's records of the epoch, and what it printed.
    """
    from tests.reference.training import _read_run

    config = yaml.safe_load((folder / "model.yml").read_text())
    config["trainer"]["epochs"] = 2
    path = folder.with_suffix(".yml")
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    out = folder.with_name(f"{folder.name}_watched")
    run = subprocess.run(
        [sys.executable, "-m", "tests.reference.trainer_driver", str(path), str(out)],
        cwd=data,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:]
    return _read_run(out), run.stdout
