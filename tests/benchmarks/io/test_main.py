"""What a sample of the loader takes."""

import json

import pytest

from benchmarks.io.__main__ import STORES, main

pytestmark = pytest.mark.slow


def test_a_sample_of_each_store(tmp_path):
    options = ["--grid", "16", "32", "--times", "40", "--threads", "0", "2"]
    options += ["--rounds", "1", "--no-credit", "--out", str(tmp_path)]
    runs = json.loads(main(options).with_suffix(".json").read_text())["runs"]
    assert len(runs) == 2 * len(STORES)
    read = {run["store"]: run["loader"]["num_bytes"] for run in runs}
    assert read["plain, window 4d"] < 0.7 * read["plain"]
    assert read["16 bits"] < 0.7 * read["plain"]
    for run in runs:
        assert run["loader"]["processor"] > 0
        assert run["copy"]["processor"] > 0
