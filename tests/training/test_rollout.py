"""Training on forecasts of several steps against CREDIT's own trainer."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import yaml

from credit_jax.config import load_config
from credit_jax.plan import plan_run
from credit_jax.training.loggers import read_log
from credit_jax.training.setup import Setup, prepare
from tests.reference.scalers import SCALED, scaler_blocks, write_scalers
from tests.reference.start import start_of
from tests.reference.training import GEN2_CONFIG
from tests.support import assert_close

pytestmark = pytest.mark.slow

NUM_UPDATES = 6
# Ten times the measured differences.
LOSS, NORM, VALIDATION, CHANGE = 1e-6, 3e-6, 1e-6, 1e-2
CASES = {
    "two steps": {"forecast_len": 2},
    "the second of two steps": {"forecast_len": 2, "backprop_on_timestep": [2]},
    "the first and the last of three steps": {
        "forecast_len": 3,
        "backprop_on_timestep": [1, 3],
    },
}
ONE_DEVICE = {"data": "none", "tensor": 1, "domain": 1}
MESH = {"data": "fsdp2", "tensor": 2, "domain": 2}


@pytest.fixture(scope="module")
def folder(credit: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data and a file of their scalers."""
    folder = tmp_path_factory.mktemp("rollout")
    credit.write_dataset(folder)
    write_scalers(folder)
    return folder


def write_config(
    folder: Path, data: dict[str, Any], trainer: Any = (), **sections: Any
) -> Path:
    """Writes a case's YAML, which scales before and unscales after each step."""
    raw = yaml.safe_load(GEN2_CONFIG.read_text()) | sections
    raw["data"] |= data
    raw["trainer"] |= {"batches_per_epoch": NUM_UPDATES} | dict(trainer)
    raw["postblocks"]["per_step"]["reconstruct"]["args"]["detach"] = False
    scaler, inverse, inverse_twin = scaler_blocks()
    raw["preblocks"] = {"per_step": {"scaler": scaler, "concat": {"type": "concat"}}}
    twin = raw["postblocks"]["per_step"].pop("reconstruct_target")
    raw["postblocks"]["per_step"] |= {
        "scaler": inverse,
        "twin": twin,
        "scaler_twin": inverse_twin,
    }
    path = folder / "case.yml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    return path


@pytest.mark.parametrize("name", CASES)
def test_trains_as_credit(
    credit: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from credit_jax.models.conversion import from_state_dict

    monkeypatch.chdir(folder)
    path = write_config(folder, CASES[name])
    run = credit.credit_train(path, folder)
    logged = read_log(folder / "run" / "training_log.csv")[-1]
    scores = [f"train_{name}" for name in ("rmse", "r2score")]
    ways = {"one device": ONE_DEVICE}
    if name == "two steps":
        ways["dp 2 x tp 2 x domain 2"] = MESH
    for where, degrees in ways.items():
        setup = prepare_on(path, degrees)
        start = from_state_dict(setup.model_def, run.initial)
        losses, norms, log, params = train(setup, start, run)
        what = f"{name}, {where}"
        assert_close(losses, run.loss, LOSS, f"{what}: losses")
        assert_close(norms, run.gradient_norm, NORM, f"{what}: gradient norms")
        for score in scores:
            assert_close(log[score], logged[score], VALIDATION, f"{what}: {score}")
        valid = log["valid_loss"]
        assert_close(valid, run.valid_loss[0], VALIDATION, f"{what}: validation")
        final, _ = from_state_dict(setup.model_def, run.final)
        moved, should = (_change(end, start[0]) for end in (params, final))
        assert_close(moved, should, CHANGE, f"{what}: change of the parameters")


def test_learned_variances_train_as_credit(
    credit: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`var_weighting: learnable` with a rate that CREDIT's schedule does not change.

    The log contains losses of single variables; validation uses the initial variances.
    """
    from credit_jax.models.conversion import from_state_dict

    monkeypatch.chdir(folder)
    scheduler = {
        "scheduler_type": "cosine-annealing-restarts",
        "first_cycle_steps": 8,
        "max_lr": 1e-3,
        "min_lr": 1e-5,
        "warmup_steps": 2,
    }
    trainer = {"scheduler": scheduler, "learning_rate": 0.05, "weight_decay": 0.01}
    args = {"var_weighting": "learnable", "scaler_path": "./scaler.json"}
    # At the first step CREDIT detaches the scored prediction, and fails.
    data = {"forecast_len": 2, "backprop_on_timestep": [2]}
    path = write_config(folder, data, trainer, loss={"type": "base", "args": args})
    run = credit.credit_train(path, folder)
    theirs = read_log(folder / "run" / "training_log.csv")[-1]
    setup = prepare_on(path, ONE_DEVICE)
    start = from_state_dict(setup.model_def, run.initial)
    losses, norms, log, params = train(setup, start, run)
    assert_close(losses, run.loss, LOSS, "learnable: losses")
    assert_close(norms, run.gradient_norm, NORM, "learnable: gradient norms")
    parts = [name for name in theirs if "loss_var/" in name]
    assert len(parts) == 2 * len(SCALED)
    for name in (*parts, "valid_loss"):
        assert_close(log[name], theirs[name], 3e-6, f"learnable: {name}")
    final, _ = from_state_dict(setup.model_def, run.final)
    moved, should = (_change(end, start[0]) for end in (params, final))
    assert_close(moved, should, CHANGE, "learnable: change of the parameters")


def prepare_on(path: Path, degrees: dict[str, Any]) -> Setup:
    """Returns the setup of a config on a mesh; all meshes have equal global batches."""
    samples = 1 if degrees["data"] == "fsdp2" else 2
    overrides = [f"trainer.parallelism.{key}={value}" for key, value in degrees.items()]
    overrides += [f"trainer.{kind}_batch_size={samples}" for kind in ("train", "valid")]
    num_devices = 8 if samples == 1 else 1
    plan = plan_run(load_config(path, overrides), num_devices=num_devices)
    return prepare(plan, jax.devices()[:num_devices])


def train(setup: Setup, start: Any, run: Any) -> Any:
    """Returns losses, gradient norms, the row of the log and the final parameters."""

    state = start_of(setup, start)
    steps, losses, norms, log = setup.steps(), [], [], defaultdict(list)
    batches = setup.train_loader.epoch(0)
    on_host = replace(setup.train_loader, is_raw=False)
    num_steps = setup.objective.rollout.num_steps
    for index in range(NUM_UPDATES):
        batch = next(batches)
        theirs = run.y[index * num_steps : (index + 1) * num_steps]
        normalized = on_host.read(batch.indices)
        assert np.array_equal(normalized.x, run.x[index * num_steps])
        assert np.array_equal(normalized.y, np.concatenate([*theirs], axis=2))
        state, info = steps.train(state, steps.place_train([batch]))
        losses.append(float(info["loss"][0]))
        norms.append(float(info["grad_norm"]))
        for name, value in info["measured"].items():
            log[f"train_{name}"].append(float(value[0]))
    assert setup.valid_loader is not None
    assert steps.evaluate is not None
    batch = steps.place_valid(next(iter(setup.valid_loader.epoch(0))))
    scores = steps.evaluate(state.ema, state.model_state, batch)
    row = {name: np.mean(values) for name, values in log.items()}
    row |= {f"valid_{name}": float(value) for name, value in scores.items()}
    params = jax.device_get(state.params)
    return np.array(losses), np.array(norms), row, params


def _change(end: dict[str, Any], start: dict[str, Any]) -> np.ndarray:
    paths = sorted(start)
    return np.concatenate([np.ravel(end[path] - start[path]) for path in paths])
