"""Compares a run that was killed with the undisturbed one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import credit_jax
from credit_jax.checkpoint.store import CHOICES, DIGESTS, FOLDER
from credit_jax.io.digests import find_damage
from credit_jax.training.loggers import LOG_NAME, RECORDS_NAME, read_log, read_records
from credit_jax.training.loop import TIME_COLUMNS


def compare_runs(straight: Path, other: Path, *, tolerance: float) -> dict[str, Any]:
    """Differences of two runs that have ended.

    Args:
        straight: folder of the undisturbed run.
        other: folder of the run that was killed.
        tolerance: relative, of losses; if 0, the log and the weights must also be
            bitwise equal.

    Returns:
        "updates", the largest relative "difference" of their losses, and "problems".
    """
    expected, actual = losses(straight), losses(other)
    problems = []
    if expected.keys() != actual.keys():
        unmatched = sorted(expected.keys() ^ actual.keys())
        problems.append(f"updates that only one of the runs has: {unmatched[:9]}")
    both = sorted(expected.keys() & actual.keys())
    errors = {n: abs(expected[n] - actual[n]) / abs(expected[n]) for n in both}
    worst = max(errors, key=lambda step: errors[step], default=0)
    difference = errors.get(worst, np.inf)
    if not difference <= tolerance:
        problems.append(f"update {worst}: the loss differs by {difference:.2g}")
    if tolerance == 0:
        problems += _log_differences(straight, other)
        problems += weight_differences(straight, other)
    problems += broken_files(other) + left_files(other)
    return {"updates": len(both), "difference": difference, "problems": problems}


def losses(run: Path) -> Mapping[int, float]:
    """The loss of every update that is recorded."""
    path = run / RECORDS_NAME
    if not path.exists():
        return {}
    return {r["step"]: r["loss"] for r in read_records(path) if "loss" in r}


def broken_files(run: Path) -> list[str]:
    """Damaged checkpoints that a run would read, one line each."""
    lines = []
    for path in sorted((run / FOLDER).glob("[0-9]*")):
        if not path.name.isdigit():
            continue
        if not (path / DIGESTS).is_file():
            lines.append(f"checkpoint {path.name} has no digests")
        lines += find_damage(path / DIGESTS)
    return lines


def left_files(run: Path) -> list[str]:
    """Unfinished files of a run that has ended, one line each."""
    left = [path for path in run.rglob(".*") if path.is_file()]
    left += [path for path in (run / FOLDER).iterdir() if not path.name.isdigit()]
    return [f"left behind: {path.relative_to(run)}" for path in left]


def _log_differences(straight: Path, other: Path) -> list[str]:
    rows = [read_log(run / LOG_NAME) for run in (straight, other)]
    values = [
        [{k: v for k, v in r.items() if k not in TIME_COLUMNS} for r in log]
        for log in rows
    ]
    return [] if values[0] == values[1] else [f"{LOG_NAME} differs"]


def weight_differences(straight: Path, other: Path) -> list[str]:
    """Says which weights of the newest checkpoints of two runs differ."""
    mesh = credit_jax.ParallelDims(world_size=1).build_mesh(jax.devices()[:1])
    lines = []
    for weights in CHOICES:
        one, two = (
            credit_jax.restore(run, mesh, weights=weights)[1:]
            for run in (straight, other)
        )
        equal = jax.tree.map(lambda x, y: bool(np.array_equal(x, y)), one, two)
        if not all(jax.tree.leaves(equal)):
            lines.append(f"{weights} weights differ")
    return lines
