"""The whole command, rehearsed on the CPU at its smallest size."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import PARTS
from benchmarks.gpu.runner import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.reference]

# What each table says of a rehearsal.
ROWS = {
    "device": "| copy |",
    "kernels": "2 of 2 are right",
    "models": "2 of 2 are right",
    "step": "| CREDIT, torch.compile |",
    "bounds": "| part | kernels | ms | bound, ms | ratio |",
    "forecast": "| CREDIT |",
    "loader": "| 0.25 degrees |",
    "training": "With kernels, 10 steps: right",
}


def rehearse(out: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command."""
    arguments = ["--out", str(out), "--archive", str(out / "more" / "gpu.tar.gz")]
    more = ["--minutes", "60", "--commit", "0123abc", "--rehearse"]
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments, *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_part_runs_and_nothing_runs_twice(tmp_path: Path) -> None:
    done = rehearse(tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / "out"
    summary = json.loads((out / "gpu.json").read_text())
    assert summary["recipe"]["commit"] == "0123abc"
    assert "CPU" in summary["recipe"]["machine"]
    assert summary["parts"].keys() == PARTS.keys() == ROWS.keys()
    for part, counts in summary["parts"].items():
        assert counts["done"] == counts["items"] > 0, part
        assert counts["wrong"] == counts["left"] == 0, part
        text = (out / f"gpu_{part}.md").read_text()
        assert ROWS[part] in text
        assert ROWS[part] in (out / "gpu.md").read_text()
        assert "No table" not in text
        items = json.loads((out / f"gpu_{part}.json").read_text())["items"]
        assert all(record["result"] for record in items.values())
    with tarfile.open(out / "more" / "gpu.tar.gz") as archive:
        names = archive.getnames()
    assert {"gpu.md", "gpu.json", "items", "logs"} <= set(names)
    assert not any(name.startswith(("cache", "scratch")) for name in names)
    files = {path: path.stat().st_mtime_ns for path in (out / "items").rglob("*.json")}
    again = rehearse(out)
    assert again.returncode == 0, again.stdout + again.stderr
    assert files == {path: path.stat().st_mtime_ns for path in files}
