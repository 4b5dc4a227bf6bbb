"""Training steps on meshes from the weights and batches of CREDIT's trainer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from credit_jax.config import load_config
from credit_jax.models.conversion import from_state_dict
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import build
from credit_jax.nn.parameters import SPECTRAL_NORM
from credit_jax.plan import plan_run
from credit_jax.training.setup import Setup, prepare
from tests.reference.start import start_of
from tests.support import assert_close, assert_trees_close

NUM_STEPS = 20
# Ten times the measured differences (docs/numerics.md).
LOSS, RATE, NORM, VALIDATION = 3e-6, 1e-6, 1e-5, 2e-6
CHANGE, PARAMETERS, VECTORS = 5e-3, 3e-4, 5e-5
# Devices, degrees, samples per dp rank: every mesh trains on CREDIT's batches.
MESHES = {
    "one_device": (1, {"tensor": 1, "domain": 1}, 2),
    "tensor2_domain2": (4, {"tensor": 2, "domain": 2}, 2),
    "dp2_tensor2_domain2": (8, {"data": "fsdp2", "tensor": 2, "domain": 2}, 1),
}


@dataclass(frozen=True)
class Trajectory:
    """Records of our training steps, as host arrays.

    Attributes:
        loss, learning_rate, gradient_norm: (step,).
        params, average: by path, after the last step.
        vectors: u of every matrix by path, after the last step.
        valid_loss: of the first validation batch, with the average.
    """

    loss: np.ndarray
    learning_rate: np.ndarray
    gradient_norm: np.ndarray
    params: dict[str, np.ndarray]
    average: dict[str, np.ndarray]
    vectors: dict[str, np.ndarray]
    valid_loss: float


def train_as_credit(config_path: Path, mesh: str, run: Any) -> Trajectory:
    """Trains on a mesh from CREDIT's weights, by the compiled steps of a run.

    Args:
        config_path: the YAML that CREDIT trained with; its data are in the working
            folder.
        mesh: a key of `MESHES`.
        run: the `CreditRun`; asserts that our batches equal its batches.
    """
    setup = _prepare(config_path, mesh)
    steps = setup.steps()
    state = start_of(setup, from_state_dict(setup.model.model_def, run.initial))
    batches = setup.train_loader.epoch(0)
    on_host = replace(setup.train_loader, is_raw=False)
    infos = []
    for index in range(NUM_STEPS):
        batch = next(batches)
        normalized = on_host.read(batch.indices)
        assert np.array_equal(normalized.x, run.x[index]), f"x of step {index} differs"
        assert np.array_equal(normalized.y, run.y[index]), f"y of step {index} differs"
        state, info = steps.train(state, steps.place_train([batch]))
        infos.append(jax.device_get(info))
    assert setup.valid_loader is not None
    assert steps.evaluate is not None
    batch = next(iter(setup.valid_loader.epoch(0)))
    scores = steps.evaluate(state.ema, state.model_state, steps.place_valid(batch))
    norms = jax.device_get(state.model_state[SPECTRAL_NORM])
    return Trajectory(
        loss=np.array([float(info["loss"][0]) for info in infos]),
        learning_rate=np.array([float(info["learning_rate"]) for info in infos]),
        gradient_norm=np.array([float(info["grad_norm"]) for info in infos]),
        params=jax.device_get(state.params),
        average=jax.device_get(state.ema),
        vectors={path: pair["u"] for path, pair in norms.items()},
        valid_loss=float(scores["loss"]),
    )


def _prepare(config_path: Path, mesh: str) -> Setup:
    num_devices, degrees, samples = MESHES[mesh]
    overrides = [f"trainer.parallelism.{name}={n}" for name, n in degrees.items()]
    overrides += [f"trainer.{kind}_batch_size={samples}" for kind in ("train", "valid")]
    config = load_config(config_path, overrides)
    plan = plan_run(config, num_devices=num_devices)
    return prepare(plan, jax.devices()[:num_devices])


def assert_follows(ours: Trajectory, run: Any, config_path: Path, what: str) -> None:
    """Asserts that every step and the final state agree with CREDIT's."""
    for index in range(NUM_STEPS):
        step = f"{what}, step {index + 1}"
        assert_close(ours.loss[index], run.loss[index], LOSS, f"{step}: loss")
        rate = ours.learning_rate[index]
        assert_close(rate, run.learning_rate[index], RATE, f"{step}: learning rate")
        norm = ours.gradient_norm[index]
        assert_close(norm, run.gradient_norm[index], NORM, f"{step}: gradient norm")
    assert ours.loss[0] != ours.loss[-1], "the run must go somewhere"
    assert run.learning_rate[0] == 0.0, "warm-up starts at zero"
    _assert_same_end(ours, run, build(load_config(config_path).model), what)
    assert_close(ours.valid_loss, run.valid_loss[0], VALIDATION, f"{what}: validation")


def _assert_same_end(
    ours: Trajectory, run: Any, model_def: ModelDef, what: str
) -> None:
    """Asserts equal parameters, changes of parameters, averages and vectors."""
    start, _ = from_state_dict(model_def, run.initial)
    final, model_state = from_state_dict(model_def, run.final)
    average, _ = from_state_dict(model_def, {**run.final, **run.ema})
    for name, actual, expected in (
        ("parameters", ours.params, final),
        ("average", ours.average, average),
    ):
        moved = _flat({k: actual[k] - start[k] for k in start})
        should = _flat({k: expected[k] - start[k] for k in start})
        assert_close(moved, should, CHANGE, f"{what}: change of the {name}")
        assert_close(_flat(actual), _flat(expected), PARAMETERS, f"{what}: {name}")
    vectors = {path: pair["u"] for path, pair in model_state[SPECTRAL_NORM].items()}
    assert_trees_close(ours.vectors, vectors, VECTORS, f"{what}: vectors u")


def _flat(tree: dict[str, Any]) -> np.ndarray:
    return np.concatenate([np.asarray(tree[key]).ravel() for key in sorted(tree)])
