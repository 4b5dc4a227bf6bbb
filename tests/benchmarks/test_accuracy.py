"""The accuracy benchmark at its smallest size, and its parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.accuracy.case import ROWS, case_config
from benchmarks.accuracy.errors import Errors, errors_of
from benchmarks.accuracy.mesh_run import MeshRun
from benchmarks.accuracy.report import Line, earlier_rows
from benchmarks.accuracy.rollout import roll_out
from benchmarks.small_models import NUM_PROGNOSTIC
from credit_jax.models.registry import build
from credit_jax.ops.compensated import relative_error

TOLERANCES = {"forward": 1e-5, "gradient": 1e-4, "loss": 1e-3, "rollout": 1e-4}


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.parametrize("model", ["wrf", "unet-diffusion"])
def test_networks_that_credits_trainer_cannot_run(credit, tmp_path, model):
    """The network of a diffusion process has no rollout."""
    from benchmarks.accuracy.__main__ import main

    arguments = ["--models", model, "--meshes", "domain2", "--steps", "2"]
    arguments += ["--rollout", "2", "--no-own", "--no-bfloat16"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    (run,) = json.loads((tmp_path / "accuracy.json").read_text())["runs"]
    print("errors:", run["worst"])
    kinds = {"forward", "gradient", "array", "loss"}
    assert run["worst"].keys() == kinds | ({"rollout"} if model == "wrf" else set())
    assert len(run["loss"]) == 2


@pytest.mark.slow
@pytest.mark.reference
def test_float32_on_uneven_rows_is_within_tolerance_of_credit(
    credit, tmp_path, monkeypatch
):
    from benchmarks.accuracy import case
    from benchmarks.accuracy.__main__ import main

    monkeypatch.setattr(case, "DEPTH", (0, 1, 0, 0))
    arguments = ["--models", "wxformer", "--meshes", "domain2", "--steps", "3"]
    arguments += ["--rollout", "3", "--no-own", "--no-bfloat16"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "accuracy.json").read_text())
    (run,) = report["runs"]
    print("errors:", run["worst"], run["loss"], run["rollout"])
    assert len(run["loss"]) == len(run["rollout"]) == 3
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
    grid = ROWS[model], 64
    assert (model_def.image_height, model_def.image_width) == grid
    diagnostics = "diagnostic" in config["data"]["source"]["ERA5"]["variables"]
    assert model_def.input_channels == NUM_PROGNOSTIC + 2
    assert model_def.output_channels == NUM_PROGNOSTIC + diagnostics


@pytest.fixture(scope="module")
def sides(credit, tmp_path_factory):
    from benchmarks.accuracy.case import case_config
    from benchmarks.accuracy.credit_run import CreditWay, credit_run, write_data

    folder = tmp_path_factory.mktemp("sides")
    config = case_config(32, 1, 1)
    write_data(folder, 32)
    return [credit_run(config, folder, CreditWay(domain=n)) for n in (1, 2)]


@pytest.mark.reference
@pytest.mark.slow
def test_credit_on_two_processes_starts_alike_and_predicts_something_else(sides):
    serial, split = sides
    assert serial.weights == split.weights
    np.testing.assert_array_equal(serial.x, split.x)
    assert serial.prediction.shape == split.prediction.shape == (1, 6, 32, 64)
    change = np.linalg.norm(split.prediction - serial.prediction)
    distance = change / np.linalg.norm(serial.prediction)
    print(f"CREDIT's domain=2 is {distance:.2f} away from CREDIT on one process")
    assert distance > 0.05


@pytest.mark.reference
@pytest.mark.slow
def test_a_grid_that_credit_refuses_is_an_error_in_its_words(credit, tmp_path):
    from benchmarks.accuracy.case import case_config
    from benchmarks.accuracy.credit_run import CreditWay, credit_run, write_data

    write_data(tmp_path, 31)
    said = credit_run(case_config(31, 1, 1), tmp_path, CreditWay(domain=2))
    assert "31" in said, said
    assert "divisible by domain_parallel_size" in said, said


CONFIG = {"steps": 20, "meshes": ["1"]}
ERRORS = Errors(1e-7, 2e-7, {"a.weight": 3e-6}, [1e-8, 2e-8], [])
LINES = [
    Line("graph", "CREDIT, 2 threads", "float32", "did not converge", date="Monday"),
    Line("wrf", "credit_jax, domain3", "float32", ERRORS, ours=True, seconds=3.0),
    Line("unet", "credit_jax, one device", "float32", ERRORS, ours=True),
]


def _report(folder: Path) -> Path:
    recipe = {"date": "Tuesday", "commit": "abc", "config": {**CONFIG, "jobs": _jobs()}}
    path = folder / "accuracy-others.json"
    runs = [line.as_json() for line in LINES]
    path.write_text(json.dumps({"recipe": recipe, "runs": runs}))
    return path


def _jobs() -> dict[str, Any]:
    return {line.model: {"seed": 1} for line in LINES}


def test_rows_of_models_that_do_not_run_anew_stay_with_their_date_and_commit(tmp_path):
    lines, jobs = earlier_rows(_report(tmp_path), ["unet"], CONFIG)
    assert jobs.keys() == {"graph", "wrf"}
    graph, wrf = lines
    assert graph == LINES[0]
    assert wrf.date == "Tuesday at commit abc"
    assert wrf.errors == ERRORS
    assert wrf.ours


def test_rows_that_were_made_with_other_options_do_not_stand_beside_new_ones(tmp_path):
    path = _report(tmp_path)
    with pytest.raises(ValueError, match=r"made with \{'steps': 20\}, this run has"):
        earlier_rows(path, ["unet"], {**CONFIG, "steps": 5})
    with pytest.raises(ValueError, match="there is no report none"):
        earlier_rows(tmp_path / "none.json", ["unet"], CONFIG)


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
    assert relative_error(np.array([np.nan]), np.ones(1)) == float("inf")
    assert relative_error(np.ones(2), np.ones(1)) == float("inf")


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
