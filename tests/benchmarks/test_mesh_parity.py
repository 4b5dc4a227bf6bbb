"""The mesh-parity benchmark at its smallest size, so that it does not rot."""

import json

import pytest

from benchmarks.jax_side import num_devices, parse_mesh
from benchmarks.mesh_parity import main
from benchmarks.parity_case import case_config


def test_names_of_meshes():
    assert parse_mesh("1") == {}
    assert parse_mesh("dp2xtp2xdomain3") == {"dp_shard": 2, "tp": 2, "domain": 3}
    assert num_devices("ddp4xdomain2") == 8
    for wrong in ("dp", "2", "dp2xdp4", "domain0", "dp2-tp2"):
        with pytest.raises(ValueError, match="expected 1, or factors dpN, ddpN"):
            parse_mesh(wrong)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="--rows must be from 22 to 62, got 64"):
        case_config(64, 20, 8)
    with pytest.raises(ValueError, match="must be a multiple of it, got 7"):
        case_config(32, 7, 8)


def test_uneven_rows_on_two_shards(tmp_path):
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
