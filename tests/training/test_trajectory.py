"""Twenty training steps beside CREDIT's own trainer: same YAML, weights and batches."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from credit_jax.config import load_config
from credit_jax.nn.model_state import SPECTRAL_NORM, ModelState
from credit_jax.parallel.params.packing import pack, unpack
from credit_jax.plan import plan_run
from credit_jax.training.setup import Setup, prepare
from credit_jax.training.state import TrainState, place_state, state_of, state_specs
from credit_torch_bridge.checkpoint.state_dict import from_state_dict
from tests.reference.training import GEN2_CONFIG
from tests.support import assert_close, assert_trees_close

NUM_STEPS = 20
# Ten times what is seen (docs/numerics.md).
LOSS, NORM, VALIDATION = 3e-6, 1e-5, 2e-6
CHANGE, PARAMETERS, VECTORS = 5e-3, 3e-4, 5e-5
# Devices, degrees, and samples of one dp rank: every mesh trains on CREDIT's batches.
MESHES = {
    "one_device": (1, {"tensor": 1, "domain": 1}, 2),
    "tensor2_domain2": (4, {"tensor": 2, "domain": 2}, 2),
    "dp2_tensor2_domain2": (8, {"data": "fsdp2", "tensor": 2, "domain": 2}, 1),
}


def _prepare(mesh: str) -> Setup:
    num_devices, degrees, samples = MESHES[mesh]
    overrides = [f"trainer.parallelism.{name}={n}" for name, n in degrees.items()]
    overrides += [f"trainer.{kind}_batch_size={samples}" for kind in ("train", "valid")]
    config = load_config(GEN2_CONFIG, overrides)
    plan = plan_run(config, num_devices=num_devices)
    return prepare(plan, jax.devices()[:num_devices])


def _start(setup: Setup, initial: dict[str, np.ndarray]) -> TrainState:
    """The state before the first step, with CREDIT's weights and vectors."""
    model_def = setup.model_def
    params, model_state = jax.device_put(from_state_dict(model_def, initial))
    packed = pack(params, model_def.param_specs)
    key = jax.random.key(0)
    state = state_of(setup.model, packed, model_state, setup.optimizer, key, ema=True)
    specs = state_specs(setup.model, setup.optimizer, ema=True)
    return place_state(state, specs, setup.mesh)


def _by_credits_names(
    setup: Setup, stored: dict[str, np.ndarray]
) -> tuple[dict[str, Any], ModelState]:
    return from_state_dict(setup.model_def, stored)


@pytest.mark.parametrize("mesh", MESHES)
def test_losses_follow_credit(
    credit_run: Any, monkeypatch: pytest.MonkeyPatch, mesh: str
) -> None:
    folder, run = credit_run
    monkeypatch.chdir(folder)
    setup = _prepare(mesh)
    steps = setup.steps()
    state = _start(setup, run.initial)
    batches = setup.train_loader.epoch(0)
    losses = []
    for index in range(NUM_STEPS):
        batch = next(batches)
        assert np.array_equal(batch.x, run.x[index]), f"x of step {index} differs"
        assert np.array_equal(batch.y, run.y[index]), f"y of step {index} differs"
        state, info = steps.train(state, steps.place_train([batch]))
        losses.append(float(info["loss"][0]))
        expected = float(run.loss[index])
        error = abs(losses[-1] - expected) / expected
        print(f"{mesh} step {index + 1}: {losses[-1]:.6f}, CREDIT {expected:.6f}, "
              f"{error:.1e}")  # fmt: skip
        assert error < LOSS, f"step {index + 1}: {losses[-1]} against {expected}"
        rate = float(info["learning_rate"])
        assert_close(rate, run.learning_rate[index], 1e-6, "learning rate")
        norm = float(info["grad_norm"])
        assert_close(norm, run.gradient_norm[index], NORM, "gradient norm")
    assert losses[0] != losses[-1], "the run must go somewhere"
    assert run.learning_rate[0] == 0.0, "warm-up starts at zero"
    _compare_end(setup, state, run, mesh)


def _compare_end(setup: Setup, state: TrainState, run: Any, mesh: str) -> None:
    """Parameters, average, vectors and validation loss after the last step."""
    param_specs = setup.model_def.param_specs
    params = jax.device_get(unpack(state.params, param_specs))
    assert state.ema is not None
    ema = jax.device_get(unpack(state.ema, param_specs))
    final, model_state = _by_credits_names(setup, run.final)
    start, _ = _by_credits_names(setup, run.initial)
    averaged, _ = _by_credits_names(setup, {**run.final, **run.ema})
    for what, actual, expected in (
        ("parameters", params, final),
        ("average", ema, averaged),
    ):
        moved = _flat({k: actual[k] - start[k] for k in start})
        should = _flat({k: expected[k] - start[k] for k in start})
        assert_close(moved, should, CHANGE, f"{mesh}: change of the {what}")
        assert_close(_flat(actual), _flat(expected), PARAMETERS, f"{mesh}: {what}")
    got = jax.device_get(state.model_state)[SPECTRAL_NORM]
    assert_trees_close(
        {path: pair["u"] for path, pair in got.items()},
        {path: pair["u"] for path, pair in model_state[SPECTRAL_NORM].items()},
        VECTORS,
        f"{mesh}: vectors u",
    )
    assert setup.valid_loader is not None
    batch = next(iter(setup.valid_loader.epoch(0)))
    scores = setup.steps().evaluate(
        state.ema, state.model_state, setup.place_valid(batch)
    )
    assert_close(
        float(scores["loss"]), run.valid_loss[0], VALIDATION, "validation loss"
    )


def _flat(tree: dict[str, Any]) -> np.ndarray:
    return np.concatenate([np.asarray(tree[key]).ravel() for key in sorted(tree)])
