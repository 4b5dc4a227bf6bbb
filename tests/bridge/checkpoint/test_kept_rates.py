"""Round trips of learning rates in a run's state, and of parameters of a loss."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from credit_jax.checkpoint import LOSS, CheckpointStore, PlateauState, Progress
from credit_torch_bridge import from_torch, to_torch
from credit_torch_bridge.checkpoint.jax_to_torch import cautions
from credit_torch_bridge.checkpoint.orbax_run import items_of, read_run
from credit_torch_bridge.checkpoint.run_config import read_run_config
from tests.bridge.cli.runs import CONFIG, MODEL_DEF, draw_checkpoint

pytestmark = pytest.mark.reference

PLATEAU = {"scheduler_type": "plateau", "patience": 3, "factor": 0.5}
SEEN = PlateauState(epochs=3, best=0.25, bad_epochs=2, cooldown=1)


def config(**trainer: Any) -> dict[str, Any]:
    changed = copy.deepcopy(CONFIG)
    changed["trainer"] |= trainer
    return changed


def there_and_back(mapping: Any, checkpoint: Any, folder: Path) -> Any:
    for name, content in to_torch(mapping, checkpoint).items():
        torch.save(content, folder / name)
    return from_torch(mapping, folder)


def test_a_plateau_and_its_rate(rng: Any, tmp_path: Path) -> None:
    """CREDIT keeps the rate in the optimizer and the state in the scheduler."""
    mapping = config(scheduler=PLATEAU)
    progress = Progress(epoch=3, learning_rate=2.5e-4, plateau=SEEN)
    checkpoint = replace(draw_checkpoint(rng), progress=progress)
    files = to_torch(mapping, checkpoint)["checkpoint.pt"]
    (group,) = files["optimizer_state_dict"]["param_groups"]
    assert group["lr"] == 2.5e-4
    assert "initial_lr" not in group, "ReduceLROnPlateau sets none"
    schedule = files["scheduler_state_dict"]
    assert (schedule["best"], schedule["num_bad_epochs"]) == (0.25, 2)
    back = there_and_back(mapping, checkpoint, tmp_path)
    assert back.progress == progress
    assert back.settings == {}
    assert back.micro_step == 60
    # The settings of the checkpoint take precedence, as they do in CREDIT.
    other = config(scheduler={**PLATEAU, "factor": 0.1, "min_lr": 1e-6})
    settings = from_torch(other, tmp_path).settings
    assert settings == {
        "trainer.scheduler.factor": 0.5,
        "trainer.scheduler.min_lr": 0.0,
    }
    wrong = config(scheduler={"scheduler_type": "lambda"})
    with pytest.raises(ValueError, match="not the state of 'lambda'"):
        from_torch(wrong, tmp_path, batches_per_epoch=20)


def test_a_constant_rate(rng: Any, tmp_path: Path) -> None:
    mapping = config(use_scheduler=False, scheduler=None)
    progress = Progress(epoch=3, learning_rate=0.02)
    checkpoint = replace(draw_checkpoint(rng), progress=progress)
    back = there_and_back(mapping, checkpoint, tmp_path)
    assert back.progress == progress
    assert back.settings == {"trainer.learning_rate": 0.02}
    pairs = {"use_scheduler": False, "scheduler": None, "grad_accum_every": 2}
    assert from_torch(config(**pairs), tmp_path).micro_step == 60, "3 epochs"
    unknown = {"parallelism": {"data": "ddp"}, "batches_per_epoch": 0}
    back = from_torch(config(**pairs, **unknown), tmp_path)
    assert back.micro_step == 120, "60 updates"


@pytest.mark.slow
def test_parameters_of_a_loss_are_not_in_credits_files(
    rng: Any, tmp_path: Path
) -> None:
    """Such a run converts; a note tells that CREDIT initializes the parameters anew."""
    args = {"var_weighting": "learnable", "scaler_path": "scaler.json"}
    mapping = config() | {"loss": {"type": "base", "args": args}}
    checkpoint = draw_checkpoint(rng)
    learned = {"params": {"log_variance": np.zeros(4, np.float32)}}
    store = CheckpointStore(tmp_path)
    items = {**items_of(checkpoint, seed=1), LOSS: learned}
    store.save(60, items, checkpoint.progress)
    store.close()
    found = read_run(tmp_path, MODEL_DEF)
    (tmp_path / "torch").mkdir()
    run_config = read_run_config(mapping)
    assert any("begins anew" in note for note in cautions(run_config, found))
    back = there_and_back(mapping, found, tmp_path / "torch")
    assert any("it begins anew" in note for note in back.notes)
    assert not any("anew" in note for note in cautions(read_run_config(CONFIG), found))
