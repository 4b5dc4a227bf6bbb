"""Memory of a training step."""

import json

import pytest

from benchmarks.scale.memory import main

pytestmark = pytest.mark.slow


def test_memory_of_one_mesh(tmp_path):
    path = main(["--meshes", "1", "--model", "small", "--out", str(tmp_path)])
    (run,) = json.loads(path.with_suffix(".json").read_text())["runs"]
    assert run["peak"] > run["temporary"] > 0
