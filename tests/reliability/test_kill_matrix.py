"""A short form of `benchmarks.kill_matrix`: four kills, and other faults."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks.kill_matrix.faults import try_fault
from benchmarks.kill_matrix.matrix import Matrix
from benchmarks.kill_matrix.report import report
from benchmarks.kill_matrix.small_demo import small_demo

pytestmark = pytest.mark.slow

FAULTS = (
    "full disk",
    "background write that fails",
    "three bits flipped in the newest checkpoint",
    "SIGTERM twice to process 1 of 4",
    "lost process",
    "process lost within a save",
)


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    """A kill matrix with its undisturbed run."""
    folder = tmp_path_factory.mktemp("matrix")
    config = folder / "config.yml"
    section = small_demo(folder / "data", epochs=4)
    config.write_text(yaml.safe_dump(section, sort_keys=False))
    matrix = Matrix(str(config), folder)
    matrix.train_undisturbed()
    return matrix


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_ends_in_a_resume_or_one_error(matrix: Matrix, name: str) -> None:
    trial = try_fault(matrix, name)
    print(f"codes {trial.codes} after {trial.seconds:.1f} s: {trial.error}")
    assert not trial.problems


def test_killed_again_and_again(matrix: Matrix, tmp_path: Path) -> None:
    matrix.go_on(4, seed=1)
    print(*matrix.kills, *matrix.runs, sep="\n")
    assert not matrix.problems
    assert len(matrix.kills) == 4
    again = Matrix(matrix.config, matrix.folder)
    assert (again.kills, again.runs) == (matrix.kills, matrix.runs)
    text = report(again, tmp_path, {}).read_text()
    assert "4 kills, 0 problems" in text
