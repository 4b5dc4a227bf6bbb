"""Reports of benchmarks: what is written, and what is tracked."""

import json
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.report import write_report

ROOT = Path(__file__).parents[2]
LIMIT = 100_000  # bytes
RECIPE: dict[str, Any] = {
    **{"date": "Monday", "commit": "abc", "python": "3.11", "machine": "2 cores"},
    **{"versions": {"jax": "0.10"}, "config": {"steps": 3}},
}


def test_the_json_has_a_line_for_each_result(tmp_path: Path) -> None:
    data = {"recipe": RECIPE, "runs": [{"a": [1.5, None]}, {"b": "x\ny"}], "none": []}
    path = write_report("report", ["# Title"], data, tmp_path)
    text = path.with_suffix(".json").read_text()
    assert json.loads(text) == data
    assert ' "runs": [\n  {"a": [1.5, null]},\n  {"b": "x\\ny"}\n ],\n' in text
    assert "- date: Monday" in path.read_text()


def test_no_tracked_json_is_large() -> None:
    """The tables of a report are in its markdown; rows of raw data stay untracked."""
    listed = ("git", "ls-files", "-z", "*.json")
    done = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True)
    sizes = {
        name: (ROOT / name).stat().st_size
        for name in done.stdout.split("\0")
        if name and (ROOT / name).exists()
    }
    assert "benchmarks/reports/accuracy.json" in sizes
    assert not {name: size for name, size in sizes.items() if size > LIMIT}
