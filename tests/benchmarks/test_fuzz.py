"""The long fuzzing program, with few seeds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.fuzz.__main__ import Tally, main
from tests.support.processes import run_program


@pytest.mark.slow
def test_the_report(tmp_path: Path) -> None:
    sizes = ("--configs", "3", "--checkpoints", "3", "--packages", "3")
    sizes += ("--datasets", "3")
    run_program("benchmarks.fuzz", *sizes, "--out", str(tmp_path))
    found = json.loads((tmp_path / "fuzz.json").read_text())
    assert found["problems"] == []
    assert sum(int(cell) for row in found["rows"] for cell in row[1:]) == 12


def test_parts_are_merged(tmp_path: Path) -> None:
    recipe = {"date": "today", "commit": "abc", "python": "3", "versions": {}}
    rows = [["datasets: rows", "1", "2", "0"], ["configs: demo", "0", "1", "0"]]
    for name, problems in (("a", []), ("b", ["rows, seed 7: took 30 s"])):
        (tmp_path / name).mkdir()
        part = {"rows": rows, "problems": problems}
        part["recipe"] = recipe | {"machine": "one", "config": {"first": name}}
        (tmp_path / name / "fuzz.json").write_text(json.dumps(part))
    parts = [str(tmp_path / name) for name in "ab"]
    assert main(["--merge", *parts, "--out", str(tmp_path)]) == 1
    merged = json.loads((tmp_path / "fuzz.json").read_text())
    assert merged["rows"] == [
        ["configs: demo", "0", "2", "0"],
        ["datasets: rows", "2", "4", "0"],
    ]
    assert merged["problems"] == ["rows, seed 7: took 30 s"]
    assert merged["recipe"]["config"]["config"] == [{"first": "a"}, {"first": "b"}]
    text = (tmp_path / "fuzz.md").read_text()
    assert "2 configs through `check`" in text
    assert "6 data sets through `check`" in text


def test_what_must_not_be_is_a_problem() -> None:
    def trials() -> Iterator[tuple[int, str, str]]:
        yield 0, "zip", "converted"
        yield 1, "zip", "refused"
        yield 2, "zip", "took 30 s"

    tally = Tally().add(trials())
    assert tally.problems == ["zip, seed 2: took 30 s"]
    assert tally.rows("checkpoints") == [["checkpoints: zip", "1", "1", "1"]]
