"""Compile time of a training step."""

import json

import pytest

from benchmarks.speed.compile_time import main

pytestmark = pytest.mark.slow


def test_compile_times(tmp_path):
    path = main(["--models", "small", "--depths", "1,1,1,1", "--out", str(tmp_path)])
    (run,) = json.loads(path.with_suffix(".json").read_text())["runs"]
    assert run["trace"] > 0
    assert run["compile"] > 0
