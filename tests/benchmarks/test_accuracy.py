"""The accuracy benchmark at its smallest size: within tolerance of CREDIT."""

import json

import numpy as np
import pytest

from benchmarks.errors import errors_of, relative
from benchmarks.jax_side import MeshRun
from benchmarks.rollout import roll_out

TOLERANCES = {"forward": 1e-5, "gradient": 1e-4, "loss": 1e-3, "rollout": 1e-4}


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
    assert relative(np.array([np.nan]), np.ones(1)) == float("inf")
    assert relative(np.ones(2), np.ones(1)) == float("inf")


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
    with pytest.raises(ValueError, match="1 frame, got 2"):
        roll_out(predict, np.zeros((1, 3, 2, 2, 3)), 1, 2)


@pytest.mark.reference
def test_float32_on_uneven_rows_is_within_tolerance_of_credit(credit, tmp_path):
    from benchmarks.accuracy import main

    arguments = ["--models", "wxformer", "--meshes", "domain2", "--steps", "3"]
    arguments += ["--rollout", "3", "--no-own", "--no-bfloat16"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "accuracy.json").read_text())
    (run,) = report["runs"]
    print("errors:", run["worst"], run["loss"], run["rollout"])
    assert len(run["loss"]) == len(run["rollout"]) == 3
    assert len(run["arrays"]) > 100, "every parameter's gradient is compared"
    for kind, tolerance in TOLERANCES.items():
        assert run["worst"][kind] <= tolerance, f"{kind}: {run['worst'][kind]:.1e}"
    assert set(report["recipe"]) >= {"date", "commit", "versions", "machine", "config"}
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "Every mesh is within them." in (tmp_path / "accuracy.md").read_text()


def test_errors_of_credit_are_told_without_folders_of_this_machine():
    from benchmarks.accuracy_report import Line, cells

    line = Line("wxformer", "CREDIT", "float32", "OSError: no /home/me/a.b/c.nc | x\n")
    assert cells(line)[1] == "did not run: OSError: no c.nc / x"
    assert line.above() == {}
