"""Twenty training steps against CREDIT's trainer: same YAML, weights and batches.

Also in a process with the compiler flags of `credit_jax.train`: tests disable XLA's
optimizations (`tests/conftest.py`); users do not.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from jax.sharding import NamedSharding

from credit_jax.config import load_config
from credit_jax.models.conversion import from_state_dict, to_state_dict
from credit_jax.models.parallel_model import build_parallel_model
from credit_jax.models.registry import build
from credit_jax.nn.parameters import SPECTRAL_NORM
from credit_jax.parallel.compiler import compile_program, compile_sooner
from credit_jax.parallel.mesh.devices import training_devices
from credit_jax.parallel.placement import place_batch
from credit_jax.plan import plan_run
from credit_jax.training.setup import Setup, prepare
from tests.reference.start import start_of
from tests.reference.training import GEN2_CONFIG
from tests.support import assert_close, assert_trees_close, make_mesh
from tests.support.processes import ROOT, run_python

NUM_STEPS = 20
# Ten times the measured differences (docs/numerics.md).
RECORDED = {
    "loss": ("loss", 3e-6),
    "learning_rate": ("learning_rate", 1e-6),
    "grad_norm": ("gradient_norm", 1e-5),
}
VALIDATION = 2e-6
CHANGE, PARAMETERS, VECTORS = 5e-3, 3e-4, 5e-5
# Devices, degrees, samples per dp rank: every mesh trains on CREDIT's batches.
MESHES = {
    "one_device": (1, {"tensor": 1, "domain": 1}, 2),
    "tensor2_domain2": (4, {"tensor": 2, "domain": 2}, 2),
    "dp2_tensor2_domain2": (8, {"data": "fsdp2", "tensor": 2, "domain": 2}, 1),
}


def train_as_credit(config_path: Path, mesh: str, run: Any) -> dict[str, Any]:
    """Trains on a mesh from CREDIT's weights, by the compiled steps of a run.

    Asserts that our batches equal those of the run, a `CreditRun`. Returns `loss`,
    `learning_rate`, `grad_norm` (step,), and of the end `params`, `average`, `vectors`
    (u of every matrix) by path, and `valid_loss` of the first validation batch.
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
    numbers = {name: [np.ravel(info[name])[0] for info in infos] for name in RECORDED}
    return numbers | {
        "params": jax.device_get(state.params),
        "average": jax.device_get(state.ema),
        "vectors": {path: pair["u"] for path, pair in norms.items()},
        "valid_loss": float(scores["loss"]),
    }


def _prepare(config_path: Path, mesh: str) -> Setup:
    num_devices, degrees, samples = MESHES[mesh]
    overrides = [f"trainer.parallelism.{name}={n}" for name, n in degrees.items()]
    overrides += [f"trainer.{kind}_batch_size={samples}" for kind in ("train", "valid")]
    config = load_config(config_path, overrides)
    plan = plan_run(config, num_devices=num_devices)
    return prepare(plan, jax.devices()[:num_devices])


def assert_follows(ours: Any, run: Any, config_path: Path, what: str) -> None:
    """Asserts that every step and the final state agree with CREDIT's."""
    for name, (credits_name, bound) in RECORDED.items():
        for index in range(NUM_STEPS):
            expected = getattr(run, credits_name)[index]
            step = f"{what}, step {index + 1}: {name}"
            assert_close(ours[name][index], expected, bound, step)
    assert ours["loss"][0] != ours["loss"][-1], "the run must go somewhere"
    assert run.learning_rate[0] == 0.0, "warm-up starts at zero"
    assert_close(ours["valid_loss"], run.valid_loss[0], VALIDATION, what)
    model_def = build(load_config(config_path).model)
    start, _ = from_state_dict(model_def, run.initial)
    final, model_state = from_state_dict(model_def, run.final)
    average, _ = from_state_dict(model_def, {**run.final, **run.ema})
    for name, actual, expected in (
        ("parameters", ours["params"], final),
        ("average", ours["average"], average),
    ):
        moved = _flat({k: actual[k] - start[k] for k in start})
        should = _flat({k: expected[k] - start[k] for k in start})
        assert_close(moved, should, CHANGE, f"{what}: change of the {name}")
        assert_close(_flat(actual), _flat(expected), PARAMETERS, f"{what}: {name}")
    vectors = {path: pair["u"] for path, pair in model_state[SPECTRAL_NORM].items()}
    assert_trees_close(ours["vectors"], vectors, VECTORS, f"{what}: vectors u")


def _flat(tree: dict[str, Any]) -> np.ndarray:
    return np.concatenate([np.asarray(tree[key]).ravel() for key in sorted(tree)])


@pytest.mark.slow(but=["dp2_tensor2_domain2"])
@pytest.mark.parametrize("mesh", [*MESHES])
def test_losses_follow_credit(
    credit_run: Any, monkeypatch: pytest.MonkeyPatch, mesh: str
) -> None:
    folder, run = credit_run
    monkeypatch.chdir(folder)
    ours = train_as_credit(GEN2_CONFIG, mesh, run)
    assert_follows(ours, run, GEN2_CONFIG, mesh)


# Ten times the measured differences.
FORWARD, GRADIENT = 6e-6, 8e-6
# Not by `python -m`, which would pickle classes of the module as those of `__main__`.
PROCESS = (
    "import sys; from tests.training.test_trajectory import main; main(*sys.argv[1:])"
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wxformer", "crossformer"])
def test_models_equal_credit_with_trainings_flags(
    kind: str, credit: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Forward, gradients and 20 training steps on dp 2 x tp 2 x domain 2."""
    path, config = GEN2_CONFIG, yaml.safe_load(GEN2_CONFIG.read_text())
    if kind == "wxformer":
        data, run = request.getfixturevalue("credit_run")
    else:
        config["model"]["type"] = kind
        data, path = tmp_path, tmp_path / "model.yml"
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        credit.write_dataset(data)
        run = credit.credit_train(path, data)
    case = credit.credit_case(config["model"], seed=3)
    flags, passes, trajectory = _run(tmp_path, data, path, run, case)
    y, loss, gradients = passes
    assert "disable_loop_unrolling" in flags, "the flags of training"
    assert "optimization_level" not in flags, "not those of the tests"
    assert_close(y, case.y, FORWARD, f"{kind}: forward")
    assert_close(loss, case.loss, FORWARD, f"{kind}: loss")
    ours, theirs = (
        np.concatenate([each[key].ravel() for key in case.gradients])
        for each in (gradients, case.gradients)
    )
    assert_close(ours, theirs, GRADIENT, f"{kind}: gradient of all parameters")
    assert_follows(trajectory, run, path, kind)


def _run(folder: Path, data: Path, *task: Any) -> Any:
    """Runs a task in a process without the tests' flags, in the folder `data`."""
    pickled, out = folder / "task.pickle", folder / "results.pickle"
    pickled.write_bytes(pickle.dumps(task))
    code, text = run_python(
        PROCESS, str(pickled), str(out), cwd=data, XLA_FLAGS="", PYTHONPATH=str(ROOT)
    )
    assert code == 0, text[-3000:]
    return pickle.loads(out.read_bytes())


MESH = "dp2_tensor2_domain2"


def main(pickled: str, out: str) -> None:
    """Trains as `_run` asks; writes flags, prediction, loss, gradients, trajectory."""
    compile_sooner()
    config_path, run, case = pickle.loads(Path(pickled).read_bytes())
    config = load_config(config_path)
    training_devices(config.trainer.parallelism, 8)
    passes = _forward_and_backward(config.model, case)
    trajectory = train_as_credit(config_path, MESH, run)
    results = os.environ["XLA_FLAGS"], passes, trajectory
    Path(out).write_bytes(pickle.dumps(results))


def _forward_and_backward(block: Any, case: Any) -> tuple[np.ndarray, float, Any]:
    """Returns prediction, loss and gradients of a `CreditCase` on the mesh."""
    model = build_parallel_model(block, make_mesh(dp=2, tp=2, domain=2))
    model_def, height = model.model_def, model.model_def.image_height
    params, model_state = from_state_dict(model_def, case.state)
    specs = model.specs, model.model_state_specs
    shardings = jax.tree.map(lambda spec: NamedSharding(model.mesh, spec), specs)
    weights = jax.device_put((params, model_state), shardings)
    placed = place_batch({"x": case.x}, model.mesh)

    def loss(params: Any, model_state: Any, inputs: Any) -> Any:
        y = model.apply(params, model_state, inputs)[..., :height, :]
        return jnp.mean(y**2), y

    both = compile_program(jax.value_and_grad(loss, has_aux=True), model.mesh)
    (value, y), grads = jax.device_get(both(*weights, placed))
    return (
        y,
        float(value),
        to_state_dict(model_def, grads, jax.device_get(model_state)),
    )
