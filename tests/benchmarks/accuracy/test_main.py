"""The accuracy benchmark at its smallest size: within tolerance of CREDIT."""

import json

import pytest

pytestmark = pytest.mark.slow

TOLERANCES = {"forward": 1e-5, "gradient": 1e-4, "loss": 1e-3, "rollout": 1e-4}


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
