"""Distances of a run from CREDIT's, and their bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from benchmarks.trajectory.our_side import Record
from credit_jax.training.loggers import LogRow
from tests.reference.training import CreditRun

FIRST = 20
_OF_ORDER_ONE = ("acc", "r2score", "log_variance_ratio")
BOUNDS: Mapping[str, float] = MappingProxyType(
    {
        # Bitwise equal, except for logarithms and roots of scaler variances: one bit.
        "batches": 2e-7,
        "loss_20": 1e-5,
        "loss_50": 1e-3,
        "learning_rate": 1e-6,
        "training_log": 1e-5,
        "validation": 1e-5,
    }
)


def errors_of(
    record: Record, run: CreditRun, rows: Sequence[LogRow]
) -> dict[str, float]:
    """Relative differences, the largest of each kind.

    Args:
        record: record of the run of credit_jax.
        run: CREDIT's steps.
        rows: CREDIT's log, one row an epoch.

    Raises:
        ValueError: the runs differ in the number of steps, epochs or metrics.
    """
    loss = _relative(record.loss, run.loss)
    updates = len(record.learning_rate) * FIRST // len(record.loss)
    norms = np.zeros(1)
    if len(run.gradient_norm):
        norms = _relative(record.gradient_norm, run.gradient_norm)[:updates]
    train, valid = (_logged(record.rows, rows, phase) for phase in ("train", "valid"))
    return {
        "batches": record.batch_error,
        "loss_20": float(loss[:FIRST].max()),
        "loss_50": float(loss[-1]),
        "gradient_norm": float(norms.max()),
        "learning_rate": float(
            _relative(record.learning_rate, run.learning_rate).max()
        ),
        "training_log": max(train[:2]),
        "validation": max(valid[:2]),
        "validation_last": valid[-1],
    }


def _relative(actual: Sequence[float], expected: np.ndarray) -> np.ndarray:
    if len(actual) != len(expected):
        raise ValueError(f"{len(actual)} values, CREDIT has {len(expected)}")
    away = np.abs(np.asarray(actual) - expected)
    return away / np.maximum(np.abs(expected), 1e-12)


def _logged(
    ours: Sequence[LogRow], theirs: Sequence[LogRow], phase: str
) -> list[float]:
    """The largest difference of each epoch, over all numbers of a phase in the log."""
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} epochs, CREDIT has {len(theirs)}")
    return [max(_of_epoch(*rows, phase)) for rows in zip(ours, theirs, strict=True)]


def _of_epoch(row: LogRow, other: LogRow, phase: str) -> list[float]:
    names = [n for n in row if n.startswith(f"{phase}_") and not n.endswith("_len")]
    missing = [name for name in names if name not in other]
    if missing or not names:
        raise ValueError(f"CREDIT's log has no {missing or phase}")
    finite = [name for name in names if math.isfinite(other[name])]
    return [abs(row[name] - other[name]) / _scale(name, other) for name in finite]


def _scale(name: str, row: LogRow) -> float:
    """The scale that a number of the log is compared with: by default itself.

    Correlations and scores may be zero, so their scale is at least one; that of a bias
    is the RMSE of its variable.
    """
    phase, _, score = name.partition("_")
    metric, _, key = score.partition("/")
    if metric in _OF_ORDER_ONE:
        return max(abs(row[name]), 1.0)
    if metric == "bias":
        return row[f"{phase}_rmse/{key}" if key else f"{phase}_rmse"]
    return max(abs(row[name]), 1e-12)
