"""The mesh-parity benchmark runs at its smallest size."""

import json

import pytest

from benchmarks.accuracy import case
from benchmarks.accuracy.mesh_parity import main

pytestmark = pytest.mark.slow


def test_uneven_rows_on_two_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(case, "DEPTH", (0, 1, 0, 0))
    arguments = ["--meshes", "1", "domain2", "--rows", "23", "--steps", "2"]
    path = main([*arguments, "--batch", "1", "--no-credit", "--out", str(tmp_path)])
    assert "| credit_jax, domain2 |" in path.read_text()
    report = json.loads(path.with_suffix(".json").read_text())
    one, two = report["runs"]
    assert len(one["loss"]) == 2
    away = two["distance"]
    print("distances of domain2 from one device:", away)
    assert away["forward"] < 1e-5
    assert away["gradient_norm_step_1"] < 1e-4
    assert max(away["loss"]) < 1e-5
    assert set(report["recipe"]) >= {"date", "commit", "versions", "machine", "config"}
