"""The float8 demo: the results it reads from its runs, and when it fails."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import float8_demo


def _write(folder: Path, loss: float, rmse: float) -> None:
    """Writes the results of a run: the log of two epochs and scores of one channel."""
    (folder / "scores").mkdir(parents=True)
    log = pd.DataFrame({"train_loss": [2.0, loss], "valid_loss": [2.0, loss]})
    log.to_csv(folder / "training_log.csv")
    systems = {"forecast": rmse, "persistence": 2.0, "climatology": 1.0}
    rows = [
        ("rmse", system, "T", "global", hours, value * hours / 24)
        for system, value in systems.items()
        for hours in (24, 48)
    ]
    names = ["metric", "system", "channel", "region", "lead_hours", "value"]
    scores = pd.DataFrame(rows, columns=names)
    scores.to_csv(folder / "scores" / "scores.csv", index=False)


@pytest.mark.parametrize(
    ("loss", "rmse", "status"), [(1.019, 0.9, 0), (1.021, 0.9, 1), (1.0, 1.1, 1)]
)
def test_near_and_better(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loss: float,
    rmse: float,
    status: int,
) -> None:
    def train(name: str, options: argparse.Namespace, folder: Path) -> None:
        exact = name == float8_demo.BFLOAT16
        _write(folder, 1.0 if exact else loss, 0.5 if exact else rmse)

    monkeypatch.setattr(float8_demo, "_train", train)
    out = ["--folder", str(tmp_path / "runs"), "--out", str(tmp_path)]
    assert float8_demo.main(out) == status
    runs = json.loads((tmp_path / "float8_demo.json").read_text())["runs"]
    assert runs["float8"]["train_loss"] == [2.0, loss]
    assert runs["float8"]["ratios"] == {"T": pytest.approx(rmse)}
    assert f"{loss - 1:+.2%}" in (tmp_path / "float8_demo.md").read_text()
