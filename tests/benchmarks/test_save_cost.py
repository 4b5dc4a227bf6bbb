"""Measurements of saves of a small model."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks.compiled_step import SMALL_MODEL
from benchmarks.save_cost import measure


@pytest.mark.slow
def test_saves_are_timed(tmp_path: Path) -> None:
    config = {"model": {"type": "wxformer", **SMALL_MODEL}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    result = measure(str(tmp_path / "small"), tmp_path / "run", saves=2)
    blocked, written = result["blocked_seconds"], result["written_seconds"]
    assert len(blocked) == len(written) == 2
    assert all(0 < b <= w for b, w in zip(blocked, written, strict=True))
    assert result["percent"] == 100 * max(blocked) / 900
    # Weights, their average and two moments, which compress little.
    assert 0.8 * 16 < result["bytes"] / result["parameters"] < 1.3 * 16
