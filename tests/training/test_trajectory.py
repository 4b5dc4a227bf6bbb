"""Training steps against CREDIT's trainer: same YAML, weights and batches.

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
from credit_jax.training.loggers import read_log
from credit_jax.training.setup import Setup, prepare
from tests.reference.scalers import SCALED, scaler_blocks, write_scalers
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
    "one_device": (1, {"data": "none", "tensor": 1, "domain": 1}, 2),
    "tensor2_domain2": (4, {"tensor": 2, "domain": 2}, 2),
    "dp2_tensor2_domain2": (8, {"data": "fsdp2", "tensor": 2, "domain": 2}, 1),
}


def prepare_on(config_path: Path, mesh: str) -> Setup:
    """The setup of a config on a mesh; all meshes have equal global batches."""
    num_devices, degrees, samples = MESHES[mesh]
    overrides = [f"trainer.parallelism.{name}={n}" for name, n in degrees.items()]
    overrides += [f"trainer.{kind}_batch_size={samples}" for kind in ("train", "valid")]
    config = load_config(config_path, overrides)
    plan = plan_run(config, num_devices=num_devices)
    return prepare(plan, jax.devices()[:num_devices])


def train_as_credit(
    config_path: Path, mesh: str, run: Any, num_updates: int = NUM_STEPS
) -> dict[str, Any]:
    """Trains on a mesh from CREDIT's weights, by the compiled steps of a run.

    Asserts that our batches equal those of the run, a `CreditRun`. Returns `loss`,
    `learning_rate`, `grad_norm` (step,), and of the end `params`, `average`, `vectors`
    (u of every matrix) by path, and the row of the `log`.
    """
    setup = prepare_on(config_path, mesh)
    steps, num_steps = setup.steps(), setup.plan.objective.rollout.num_steps
    state = start_of(setup, from_state_dict(setup.model.model_def, run.initial))
    batches = setup.train_loader.epoch(0)
    on_host = replace(setup.train_loader, is_raw=False)
    infos = []
    for index in range(num_updates):
        batch, first = next(batches), index * num_steps
        normalized, theirs = on_host.read(batch.indices), run.y[first:][:num_steps]
        assert np.array_equal(normalized.x, run.x[first]), f"x of step {index} differs"
        y = np.concatenate([*theirs], axis=2)
        assert np.array_equal(normalized.y, y), f"y of step {index} differs"
        state, info = steps.train(state, steps.place_train([batch]))
        infos.append(jax.device_get(info))
    batch = steps.place_valid(next(iter(setup.valid_loader.epoch(0))))
    scores = steps.evaluate(state.ema, state.model_state, batch)
    log = {f"valid_{name}": float(value) for name, value in scores.items()}
    for name in infos[0]["measured"]:
        log[f"train_{name}"] = np.mean([info["measured"][name][0] for info in infos])
    norms = jax.device_get(state.model_state[SPECTRAL_NORM])
    numbers = {name: [np.ravel(info[name])[0] for info in infos] for name in RECORDED}
    return numbers | {
        "params": jax.device_get(state.params),
        "average": jax.device_get(state.ema),
        "vectors": {path: pair["u"] for path, pair in norms.items()},
        "log": log,
    }


def assert_follows(ours: Any, run: Any, config_path: Path, what: str) -> None:
    """Asserts that every step and the final state agree with CREDIT's."""
    for name, (credits_name, bound) in RECORDED.items():
        for index in range(NUM_STEPS):
            expected = getattr(run, credits_name)[index]
            step = f"{what}, step {index + 1}: {name}"
            assert_close(ours[name][index], expected, bound, step)
    assert ours["loss"][0] != ours["loss"][-1], "the run must go somewhere"
    assert run.learning_rate[0] == 0.0, "warm-up starts at zero"
    assert_close(ours["log"]["valid_loss"], run.valid_loss[0], VALIDATION, what)
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


# Forecasts of several steps.


NUM_UPDATES = 6
# Ten times the measured differences: of losses, gradient norms, scores, changes.
BOUNDS = 1e-6, 3e-6, 1e-6, 1e-2
LEARNABLE = {"var_weighting": "learnable", "scaler_path": "./scaler.json"}
# A rate that CREDIT's schedule does not change.
RESTARTS = {
    **{"scheduler_type": "cosine-annealing-restarts", "first_cycle_steps": 8},
    **{"max_lr": 1e-3, "min_lr": 1e-5, "warmup_steps": 2},
}
# Data, trainer and loss sections.
CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "two steps": ({"forecast_len": 2},),
    "the second of two steps": ({"forecast_len": 2, "backprop_on_timestep": [2]},),
    "the first and the last of three steps": (
        {"forecast_len": 3, "backprop_on_timestep": [1, 3]},
    ),
    # Of the first step CREDIT detaches the scored prediction, and fails.
    "learned variances": (
        {"forecast_len": 2, "backprop_on_timestep": [2]},
        {"scheduler": RESTARTS, "learning_rate": 0.05, "weight_decay": 0.01},
        {"type": "base", "args": LEARNABLE},
    ),
}


@pytest.fixture(scope="module")
def folder(credit: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data and a file of their scalers."""
    folder = tmp_path_factory.mktemp("rollout")
    credit.write_dataset(folder)
    write_scalers(folder)
    return folder


def write_config(
    folder: Path, data: dict[str, Any], trainer: Any = (), loss: Any = None
) -> Path:
    """Writes a case's YAML, which scales before and unscales after each step."""
    raw = yaml.safe_load(GEN2_CONFIG.read_text())
    raw |= {"loss": loss} if loss else {}
    raw["data"] |= data
    raw["trainer"] |= {"batches_per_epoch": NUM_UPDATES} | dict(trainer)
    raw["postblocks"]["per_step"]["reconstruct"]["args"]["detach"] = False
    scaler, inverse, inverse_twin = scaler_blocks()
    raw["preblocks"] = {"per_step": {"scaler": scaler, "concat": {"type": "concat"}}}
    twin = raw["postblocks"]["per_step"].pop("reconstruct_target")
    blocks = {"scaler": inverse, "twin": twin, "scaler_twin": inverse_twin}
    raw["postblocks"]["per_step"] |= blocks
    path = folder / "case.yml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_trains_as_credit(
    credit: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The log has losses of single variables; validation the initial variances."""
    monkeypatch.chdir(folder)
    path, learned = write_config(folder, *CASES[name]), name == "learned variances"
    run = credit.credit_train(path, folder)
    logged = read_log(folder / "run" / "training_log.csv")[-1]
    loss, norm, score, change = BOUNDS
    scores, valid = dict.fromkeys(("train_rmse", "train_r2score"), score), score
    if learned:
        scores = dict.fromkeys((n for n in logged if "loss_var/" in n), valid := 3e-6)
        assert len(scores) == 2 * len(SCALED)
    else:
        logged["valid_loss"] = run.valid_loss[0]
    for mesh in (
        "one_device",
        *(["dp2_tensor2_domain2"] if name == "two steps" else []),
    ):
        ours, what = train_as_credit(path, mesh, run, NUM_UPDATES), f"{name}, {mesh}"
        assert_close(ours["loss"], run.loss, loss, f"{what}: losses")
        assert_close(ours["grad_norm"], run.gradient_norm, norm, f"{what}: norms")
        for column, bound in {**scores, "valid_loss": valid}.items():
            assert_close(
                ours["log"][column], logged[column], bound, f"{what}: {column}"
            )
        model_def = build(load_config(path).model)
        states = run.initial, run.final
        start, final = (from_state_dict(model_def, each)[0] for each in states)
        ends = ours["params"], final
        moved, should = (_flat({k: end[k] - start[k] for k in start}) for end in ends)
        assert_close(moved, should, change, f"{what}: change of the parameters")


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
