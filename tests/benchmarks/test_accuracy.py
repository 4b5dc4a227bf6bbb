"""The benchmarks of accuracy and of trajectories at their smallest size."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.accuracy.case import ROWS, case_config
from benchmarks.accuracy.errors import Errors, errors_of
from benchmarks.accuracy.mesh_run import MeshRun
from benchmarks.accuracy.report import Line, earlier_rows
from benchmarks.accuracy.rollout import roll_out
from benchmarks.small_models import NUM_PROGNOSTIC
from benchmarks.trajectory import errors as trajectory
from benchmarks.trajectory.cases import CASES, NUM_EPOCHS, write_case
from benchmarks.trajectory.our_side import Record, _batch_error
from credit_jax.config import load_config
from credit_jax.data import Sampler
from credit_jax.models.registry import build
from credit_jax.ops.compensated import relative_error
from credit_jax.plan import plan_run
from tests.reference.training import CreditRun

TOLERANCES = {"forward": 1e-5, "gradient": 1e-4, "loss": 1e-3, "rollout": 1e-4}


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.usefixtures("credit")
@pytest.mark.parametrize("model", ["wxformer", "wrf", "unet-diffusion"])
def test_the_command_on_uneven_rows(tmp_path, monkeypatch, model):
    """CREDIT's trainer runs the first; the network of a process has no rollout."""
    from benchmarks.accuracy import case
    from benchmarks.accuracy.__main__ import main

    monkeypatch.setattr(case, "DEPTH", (0, 1, 0, 0))
    words = ["--models", model, "--meshes", "domain2", "--steps", "3", "--rollout", "3"]
    assert main([*words, "--no-own", "--no-bfloat16", "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "accuracy.json").read_text())
    (run,) = report["runs"]
    print("errors:", run["worst"], run["loss"])
    kinds = {"forward", "gradient", "array", "loss"}
    kinds |= {"rollout"} if model != "unet-diffusion" else set()
    assert run["worst"].keys() == kinds
    assert len(run["loss"]) == 3
    if model != "wxformer":
        return
    assert len(run["rollout"]) == 3
    assert run["num_arrays"] > 100, "every parameter's gradient is compared"
    for kind, tolerance in TOLERANCES.items():
        assert run["worst"][kind] <= tolerance, f"{kind}: {run['worst'][kind]:.1e}"
    assert set(report["recipe"]) >= {"date", "commit", "versions", "machine", "config"}
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "Every mesh is within them." in (tmp_path / "accuracy.md").read_text()


@pytest.mark.filterwarnings("ignore:.*output_only_channels")
@pytest.mark.parametrize("model", ROWS)
def test_models_fit_the_data(model):
    """The data have 5 channels of state, 2 of further inputs and 1 diagnostic."""
    config = case_config(ROWS[model], 20, 2, model=model)
    section = config["model"]
    if model == "graph":
        section = {**section, "image_height": 32, "image_width": 64}
    model_def = build(section)
    assert (model_def.image_height, model_def.image_width) == (ROWS[model], 64)
    diagnostics = "diagnostic" in config["data"]["source"]["ERA5"]["variables"]
    assert model_def.input_channels == NUM_PROGNOSTIC + 2
    assert model_def.output_channels == NUM_PROGNOSTIC + diagnostics


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.usefixtures("credit")
def test_credit_on_two_processes_predicts_something_else(tmp_path):
    from benchmarks.accuracy.credit_run import CreditWay, credit_run, write_data

    write_data(tmp_path, 32)
    config = case_config(32, 1, 1)
    serial, split = (credit_run(config, tmp_path, CreditWay(domain=n)) for n in (1, 2))
    assert serial.weights == split.weights
    np.testing.assert_array_equal(serial.x, split.x)
    assert serial.prediction.shape == split.prediction.shape == (1, 6, 32, 64)
    distance = relative_error(split.prediction, serial.prediction)
    print(f"CREDIT's domain=2 is {distance:.2f} away from CREDIT on one process")
    assert distance > 0.05
    # A grid that CREDIT refuses is an error in its words.
    (odd := tmp_path / "odd").mkdir()
    write_data(odd, 31)
    said = credit_run(case_config(31, 1, 1), odd, CreditWay(domain=2))
    assert "31" in said, said
    assert "divisible by domain_parallel_size" in said, said


def test_rows_of_models_that_do_not_run_anew_stay_with_their_date(tmp_path):
    options = {"steps": 20, "meshes": ["1"]}
    errors = Errors(1e-7, 2e-7, {"a.weight": 3e-6}, [1e-8, 2e-8], [])
    lines = [
        Line("graph", "CREDIT, 2 threads", "float32", "no", date="Monday"),
        Line("wrf", "credit_jax, domain3", "float32", errors, ours=True, seconds=3.0),
        Line("unet", "credit_jax, one device", "float32", errors, ours=True),
    ]
    config = {**options, "jobs": {line.model: {"seed": 1} for line in lines}}
    recipe = {"date": "Tuesday", "commit": "abc", "config": config}
    path = tmp_path / "accuracy-others.json"
    runs = [line.as_json() for line in lines]
    path.write_text(json.dumps({"recipe": recipe, "runs": runs}))
    (graph, wrf), jobs = earlier_rows(path, ["unet"], options)
    assert jobs.keys() == {"graph", "wrf"}
    assert graph == lines[0]
    assert wrf.date == "Tuesday at commit abc"
    assert wrf.errors == errors
    assert wrf.ours
    with pytest.raises(ValueError, match=r"made with \{'steps': 20\}, this run has"):
        earlier_rows(path, ["unet"], {**options, "steps": 5})
    with pytest.raises(ValueError, match="there is no report none"):
        earlier_rows(tmp_path / "none.json", ["unet"], options)


def test_errors_are_relative_and_small_arrays_are_not_measured_by_their_rounding():
    base = MeshRun(np.array([2.0]), np.zeros(1), np.array([3.0, 4.0]), 0.0)
    run = MeshRun(np.array([2.2]), np.zeros(1), np.array([3.0, 4.5]), 0.0)
    gradients = {"a": np.array([3.0, 4.0]), "b": np.array([1e-9])}
    away = {"a": np.array([3.0, 4.0]), "b": np.array([6e-9]), "idle": np.ones(3)}
    errors = errors_of(run, away, base, gradients)
    assert errors.forward == pytest.approx(0.1)
    assert errors.loss == [pytest.approx(0.1)]
    assert errors.arrays["b"] == pytest.approx(5e-9 / 5e-3)
    assert errors.gradient == pytest.approx(1e-9)


def test_a_rollout_feeds_prognostic_channels_back_and_holds_the_others():
    seen = []

    def predict(x):
        seen.append(x)
        return np.concatenate([x[:, :2, 0] + x[:, 2:, 0], x[:, :1, 0] * 100], axis=1)

    x = np.stack([np.full((1, 1, 2, 3), c) for c in (1.0, 2.0, 10.0)], axis=1)
    states = roll_out(predict, x, 3, 2)
    assert states.shape == (3, 1, 2, 2, 3)
    np.testing.assert_array_equal(states[:, 0, 0, 0, 0], [11, 21, 31])
    np.testing.assert_array_equal(states[:, 0, 1, 0, 0], [12, 22, 32])
    assert all(np.array_equal(s[:, 2], x[:, 2]) for s in seen), "forcing must be held"


# Trajectories: their cases and their distances.


@pytest.mark.reference
@pytest.mark.slow(but=["two steps, gradients of both"])
@pytest.mark.usefixtures("credit")
@pytest.mark.parametrize("name", CASES)
def test_every_case_can_be_trained(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    plan = plan_run(load_config(write_case(CASES[name], tmp_path)), num_devices=1)
    assert plan.config.trainer.epochs == NUM_EPOCHS
    num_steps = plan.objective.rollout.num_steps
    assert num_steps == {"two": 2, "three": 3}.get(name.split(" steps")[0], 1)


def test_distances_of_a_run_from_credits():
    loss = np.linspace(1.0, 0.5, 50)
    run = CreditRun(
        **dict.fromkeys(("loss", "learning_rate", "gradient_norm"), loss),
        **dict.fromkeys(("x", "y", "valid_loss"), np.zeros(0)),
        **{"initial": {}, "final": {}, "ema": None},
    )
    numbers = {"train_mae": 4.0, "train_bias": 1.0, "train_rmse": 5.0}
    numbers |= {"valid_loss": 2.0, "valid_acc": 0.0}
    rows = [{"epoch": epoch, **numbers} for epoch in range(5)]
    values, ours = loss.tolist(), [dict(row) for row in rows]
    record = Record([*values], [*values], [*values], rows=ours)
    assert set(trajectory.errors_of(record, run, rows).values()) == {0.0}

    record.loss[3] *= 1.01
    record.loss[-1] *= 1.02
    ours[1]["valid_acc"], ours[0]["train_bias"] = 0.03, 1.2
    record.batch_error = 1e-3
    errors = trajectory.errors_of(record, run, rows)
    assert errors["loss_20"] == pytest.approx(0.01)
    assert errors["loss_50"] == pytest.approx(0.02)
    assert errors["validation"] == pytest.approx(0.03)
    assert errors["training_log"] == pytest.approx(0.04)
    assert (errors["batches"], errors["validation_last"]) == (1e-3, 0.0)

    with pytest.raises(ValueError, match="5 epochs, CREDIT has 4"):
        trajectory.errors_of(record, run, rows[:4])
    record.loss.pop()
    with pytest.raises(ValueError, match="49 values, CREDIT has 50"):
        trajectory.errors_of(record, run, rows)


def batches(batch_size: int, ranks: int) -> list[Any]:
    order = Sampler(
        num_samples=12,
        batch_size=batch_size,
        local_dp_ranks=tuple(range(ranks)),
        dp_size=ranks,
        seed=3,
        shuffle=True,
        keep_partial=False,
    )
    return [1.0 + index.astype(float)[:, *[None] * 4] for index in order.batches(0)]


def test_ranks_take_samples_in_turn() -> None:
    rollout: Any = SimpleNamespace(num_steps=1, num_members=1)
    theirs, ours = batches(batch_size=4, ranks=1), batches(batch_size=2, ranks=2)
    run: Any = SimpleNamespace(x=theirs, y=theirs)
    assert len(ours) == len(theirs) == 3
    for index, array in enumerate(ours):
        batch: Any = SimpleNamespace(x=array, y=array)
        assert not np.array_equal(array, theirs[index]), "another order"
        assert _batch_error(batch, run, index, rollout, ranks=2) == 0
        assert _batch_error(batch, run, index, rollout, ranks=1) > 0
