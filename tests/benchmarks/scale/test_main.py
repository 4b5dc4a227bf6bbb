"""Step times derived from counted work."""

import json

import pytest

from benchmarks.scale.__main__ import main
from credit_jax.parallel.rows.reshard import HALO

pytestmark = pytest.mark.slow


def test_step_times_add_up(tmp_path):
    path = main(
        ["--model", "small", "--meshes", "1", "domain2", "--out", str(tmp_path)]
    )
    found = json.loads(path.with_suffix(".json").read_text())
    one, two = found["parts"]
    assert 0.4 < two["flops"] / one["flops"] < 0.6, "two shards share the work"
    assert not any(one["bytes"].values())
    assert two["bytes"][HALO] > 0
    alone = found["times"][0]
    assert alone["none_hidden"] == pytest.approx(alone["compute"])
