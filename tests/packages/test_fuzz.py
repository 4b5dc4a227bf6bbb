"""Mutated packages are read, or refused by one error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import run_program


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [(0, 60), (60, 180)],
    ids=["short", "long"],
)
def test_mutations(made: Path, tmp_path: Path, seeds: tuple[int, int]) -> None:
    folders = str(made), str(tmp_path)
    print(run_program("tests.packages.fuzz", *folders, *map(str, seeds)))
