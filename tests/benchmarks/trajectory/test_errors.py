"""Distances of runs: zero for equal runs, else the size of the change."""

import numpy as np
import pytest

from benchmarks.trajectory.errors import errors_of
from benchmarks.trajectory.our_side import Record
from tests.reference.training import CreditRun

STEPS = 50


def run_and_record():
    loss = np.linspace(1.0, 0.5, STEPS)
    arrays = {name: np.zeros(0) for name in ("x", "y", "valid_loss")}
    states = {"initial": {}, "final": {}, "ema": None}
    run = CreditRun(
        loss=loss, learning_rate=loss, gradient_norm=loss, **arrays, **states
    )
    numbers = {"train_mae": 4.0, "train_bias": 1.0, "train_rmse": 5.0}
    numbers |= {"valid_loss": 2.0, "valid_acc": 0.0}
    rows = [{"epoch": epoch, **numbers} for epoch in range(5)]
    values = loss.tolist()
    return (
        run,
        rows,
        Record([*values], [*values], [*values], rows=[dict(r) for r in rows]),
    )


def test_equal_runs():
    run, rows, record = run_and_record()
    assert set(errors_of(record, run, rows).values()) == {0.0}


def test_what_differs_is_found():
    run, rows, record = run_and_record()
    record.loss[3] *= 1.01
    record.loss[-1] *= 1.02
    record.rows[1]["valid_acc"] = 0.03
    record.rows[0]["train_bias"] = 1.2
    record.batch_error = 1e-3
    found = errors_of(record, run, rows)
    assert found["loss_20"] == pytest.approx(0.01)
    assert found["loss_50"] == pytest.approx(0.02)
    assert found["validation"] == pytest.approx(0.03)
    assert found["training_log"] == pytest.approx(0.04)
    assert (found["batches"], found["validation_last"]) == (1e-3, 0.0)


def test_runs_of_other_lengths_are_refused():
    run, rows, record = run_and_record()
    with pytest.raises(ValueError, match="5 epochs, CREDIT has 4"):
        errors_of(record, run, rows[:4])
    record.loss.pop()
    with pytest.raises(ValueError, match="49 values, CREDIT has 50"):
        errors_of(record, run, rows)
