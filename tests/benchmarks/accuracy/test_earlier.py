"""Rows of an earlier accuracy report, merged with new ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy.errors import Errors
from benchmarks.accuracy.report import Line, earlier_rows

CONFIG = {"steps": 20, "meshes": ["1"]}
ERRORS = Errors(1e-7, 2e-7, {"a.weight": 3e-6}, [1e-8, 2e-8], [])
LINES = [
    Line("graph", "CREDIT, 2 threads", "float32", "did not converge", date="Monday"),
    Line("wrf", "credit_jax, domain3", "float32", ERRORS, ours=True, seconds=3.0),
    Line("unet", "credit_jax, one device", "float32", ERRORS, ours=True),
]


def _report(folder: Path) -> Path:
    recipe = {"date": "Tuesday", "commit": "abc", "config": {**CONFIG, "jobs": _jobs()}}
    path = folder / "accuracy-others.json"
    runs = [line.as_json() for line in LINES]
    path.write_text(json.dumps({"recipe": recipe, "runs": runs}))
    return path


def _jobs() -> dict[str, Any]:
    return {line.model: {"seed": 1} for line in LINES}


def test_rows_of_models_that_do_not_run_anew_stay_with_their_date_and_commit(tmp_path):
    lines, jobs = earlier_rows(_report(tmp_path), ["unet"], CONFIG)
    assert jobs.keys() == {"graph", "wrf"}
    graph, wrf = lines
    assert graph == LINES[0]
    assert wrf.date == "Tuesday at commit abc"
    assert wrf.errors == ERRORS
    assert wrf.ours


def test_rows_that_were_made_with_other_options_do_not_stand_beside_new_ones(tmp_path):
    path = _report(tmp_path)
    with pytest.raises(ValueError, match=r"made with \{'steps': 20\}, this run has"):
        earlier_rows(path, ["unet"], {**CONFIG, "steps": 5})
    with pytest.raises(ValueError, match="there is no report none"):
        earlier_rows(tmp_path / "none.json", ["unet"], CONFIG)
