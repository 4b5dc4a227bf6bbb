"""The short form of `benchmarks.kill_matrix`: four kills of a small run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.kill_matrix import Matrix
from tests.support.processes import PROGRAM
from tests.training.tiny import tiny_config, write_yaml


@pytest.mark.slow
def test_killed_again_and_again(world: Path, tmp_path: Path) -> None:
    mapping = tiny_config(
        world,
        tmp_path / "run",
        trainer__num_devices=2,
        trainer__parallelism={"data": "none", "tensor": 1, "domain": 2},
        trainer__epochs=25,
        trainer__save_every_steps=2,
        trainer__skip_validation=True,
    )
    config = write_yaml(tmp_path / "config.yml", mapping)
    program = [sys.executable, "-c", PROGRAM, "credit_jax.train"]
    matrix = Matrix(program, config, tmp_path)
    matrix.run(4, seed=1)
    print(*matrix.kills, sep="\n")
    assert not matrix.problems
    assert len(matrix.kills) == 4
