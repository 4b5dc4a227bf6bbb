"""Mutated checkpoints are converted, or refused by one error, in bounded time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes import run_program


@pytest.mark.slow
@pytest.mark.usefixtures("torch")
@pytest.mark.parametrize(
    "seeds",
    [(0, 10), (10, 130)],
    ids=["short", "long"],
)
def test_mutations(tmp_path: Path, seeds: tuple[int, int]) -> None:
    program = "tests.bridge.checkpoint.fuzz"
    print(run_program(program, str(tmp_path), *map(str, seeds)))
