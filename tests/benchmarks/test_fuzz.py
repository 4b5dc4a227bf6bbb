"""The long fuzzing program, with few seeds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.fuzz.__main__ import Tally
from tests.support.processes import run_program


@pytest.mark.slow
def test_the_report(tmp_path: Path) -> None:
    sizes = ("--configs", "3", "--checkpoints", "3", "--packages", "3")
    sizes += ("--datasets", "3")
    run_program("benchmarks.fuzz", *sizes, "--out", str(tmp_path))
    found = json.loads((tmp_path / "fuzz.json").read_text())
    assert found["problems"] == []
    assert sum(int(cell) for row in found["rows"] for cell in row[1:]) == 12


def test_what_must_not_be_is_a_problem() -> None:
    def trials() -> Iterator[tuple[int, str, str]]:
        yield 0, "zip", "converted"
        yield 1, "zip", "refused"
        yield 2, "zip", "took 30 s"

    tally = Tally().add(trials())
    assert tally.problems == ["zip, seed 2: took 30 s"]
    assert tally.rows("checkpoints") == [["checkpoints: zip", "1", "1", "1"]]
