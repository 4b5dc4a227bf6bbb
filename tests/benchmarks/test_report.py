"""Reports, and the programs that write them."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks import finetune_demo
from benchmarks.certificates import CONFIGS, meshes_of
from benchmarks.finetune_demo import BASE, SCRATCH, TUNED
from benchmarks.report import write_report
from credit_jax.config import Config, load_config
from tests.support.custom_objects import no_objects_left
from tests.support.processes import run_program

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


@pytest.mark.slow
def test_the_report(tmp_path: Path) -> None:
    sizes = ("--configs", "3", "--checkpoints", "3", "--packages", "3")
    sizes += ("--datasets", "3")
    run_program("benchmarks.fuzz", *sizes, "--out", str(tmp_path))
    found = json.loads((tmp_path / "fuzz.json").read_text())
    assert found["problems"] == []
    assert sum(int(cell) for row in found["rows"] for cell in row[1:]) == 12


__all__ = ["no_objects_left"]


def document(error, *, wide=()):
    check = {"quantity": "prediction", "error": error, "bound": 1e-6}
    verdict = {"mesh": "tp2", "passed": error < 1e-3, "place": "block 1"}
    return {
        "passed": error < 1e-3,
        "verdicts": [verdict | {"checks": [check], "in_float64": [*wide]}],
    }


@pytest.mark.usefixtures("no_objects_left")
@pytest.mark.parametrize("name", ["demo", "assimilate_demo"])
def test_the_meshes_of_a_config(name):
    """The model of the second is one of custom_objects."""
    names = meshes_of(CONFIGS / f"{name}.yaml")
    assert names[:3] == ["ddp2", "fsdp2", "tp2"]
    assert len(names) >= 12
    assert "1" not in names


def _write(folder: Path, losses: list[float], rmse: float) -> None:
    """Writes the results of a run: its log, steps, and scores of two levels."""
    (folder / "scores").mkdir(parents=True)
    pd.DataFrame({"valid_loss": losses}).to_csv(folder / "training_log.csv")
    steps = [{"event": "start", "step": 0}]
    steps += [{"step": n, "step_seconds": 0.5} for n in (1, 2 * len(losses))]
    lines = "".join(json.dumps(step) + "\n" for step in steps)
    (folder / "training_steps.jsonl").write_text(lines)
    systems = {"forecast": rmse, "persistence": 2.0}
    rows = [
        ("rmse", system, f"T{level}", "T", "global", hours, value * level * hours / 24)
        for system, value in systems.items()
        for level in (1, 7)
        for hours in (24, 48)
    ]
    names = ["metric", "system", "channel", "variable", "region", "lead_hours", "value"]
    scores = pd.DataFrame(rows, columns=names)
    scores.to_csv(folder / "scores" / "scores.csv", index=False)


@pytest.mark.parametrize(("rmse", "status"), [(0.9, 0), (1.1, 1)])
def test_the_better_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rmse: float, status: int
) -> None:
    configs: dict[str, Config] = {}

    def train(config: Path, settings: Mapping[str, Any], folder: Path) -> None:
        sets = [f"{key}={value}" for key, value in settings.items()]
        configs[folder.name] = load_config(config, sets)
        tuned = folder.name == TUNED
        _write(folder, [0.5, 0.4] if tuned else [0.6, 0.45, 0.7], rmse if tuned else 1)

    monkeypatch.setattr(finetune_demo, "_train", train)
    # Scores of other days than those of the validation.
    score = lambda folder: shutil.copytree(folder / "scores", folder / "test")  # noqa: E731
    monkeypatch.setattr(finetune_demo, "_score", score)
    runs, out = tmp_path / "runs", tmp_path / "out"
    options = ["--folder", str(runs), "--out", str(out)]
    assert finetune_demo.main(options) == status
    assert [*configs] == [BASE, TUNED, SCRATCH]
    lengths = {
        name: (
            config.trainer.epochs,
            config.trainer.scheduler.model_dump()["total_steps"],
        )
        for name, config in configs.items()
    }
    assert lengths == {BASE: (10, 620), TUNED: (6, 84), SCRATCH: (60, 840)}
    assert configs[SCRATCH].trainer.finetune is None
    text = (out / "finetune_demo.md").read_text()
    assert f"| T | 10 | {5 * rmse:.3g} | 5 |" in text
    assert "fine-tuned 0.4000 and 0.4000; from scratch 0.4500 and 0.7000" in text
    assert f"is {'' if not status else 'not '}better" in text
    assert (out / "finetune_demo.png").stat().st_size > 5000
    configs.clear()
    assert finetune_demo.main(options) == status
    assert not configs, "runs that have scores are not repeated"
