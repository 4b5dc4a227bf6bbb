"""Rows of an earlier accuracy report that a new run of some of its models keeps."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from benchmarks.accuracy.report import Line


def date_of(recipe: Mapping[str, Any]) -> str:
    """Date and commit of a recipe, in the form of `Line.date`."""
    return f"{recipe['date']} at commit {recipe['commit']}"


def earlier_rows(
    path: Path, models: Collection[str], config: Mapping[str, Any]
) -> tuple[list[Line], dict[str, Any]]:
    """Rows and jobs of a report, except those of models that are run again.

    Args:
        path: JSON of the report.
        models: models that are run again.
        config: options of this run, which the report must have been made with.

    Returns:
        Lines, and the config of each of their models.

    Raises:
        ValueError: no such report, or one with other options.
    """
    if not path.is_file():
        raise ValueError(f"--keep: there is no report {path.name} to keep rows of")
    report = json.loads(path.read_text(encoding="utf-8"))
    earlier = report["recipe"]["config"]
    other = {k: earlier.get(k) for k, v in config.items() if earlier.get(k) != v}
    if other:
        raise ValueError(
            f"--keep: {path.name} was made with {other}, this run has "
            f"{ {key: config[key] for key in other} }; run all models anew, or give "
            "the options of the report"
        )
    before = date_of(report["recipe"])
    rows = [row for row in report["runs"] if row["model"] not in models]
    jobs = {k: job for k, job in earlier["jobs"].items() if k not in models}
    return [Line.from_json(row, before) for row in rows], jobs
