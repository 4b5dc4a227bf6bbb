"""Samples per second of the loader and of the step."""

import json

import pytest

from benchmarks.io.__main__ import main

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("store", ["demo", "025deg"])
def test_loader_beside_the_step(store, tmp_path):
    options = ["--stores", store, "--days", "20", "--grid", "16", "32"]
    options += ["--threads", "0", "1"]
    options += ["--seconds", "0.2", "--size", "tiny", "--out", str(tmp_path)]
    path = main(options)
    (run,) = json.loads(path.with_suffix(".json").read_text())["runs"]
    assert all(rate > 0 for rate in run["loader"].values())
    assert all(rate > 0 for rate in run["loader_none_kept"].values())
    assert run["loader_first"].keys() == run["loader"].keys()
    assert all(rate > 0 for rate in run["loader_first"].values())
    assert run["step"] > 0
