"""The trajectory benchmark: its cases and its distances."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.trajectory.cases import CASES, NUM_EPOCHS, write_case
from benchmarks.trajectory.errors import errors_of
from benchmarks.trajectory.our_side import Record, _batch_error
from credit_jax.config import load_config
from credit_jax.data import Sampler
from credit_jax.plan import plan_run
from tests.reference.training import CreditRun


@pytest.mark.reference
@pytest.mark.slow(but=["two steps, gradients of both"])
@pytest.mark.parametrize("name", CASES)
def test_every_case_can_be_trained(credit, tmp_path, monkeypatch, name):
    del credit
    monkeypatch.chdir(tmp_path)
    plan = plan_run(load_config(write_case(CASES[name], tmp_path)), num_devices=1)
    assert plan.config.trainer.epochs == NUM_EPOCHS
    num_steps = plan.objective.rollout.num_steps
    assert num_steps == {"two": 2, "three": 3}.get(name.split(" steps")[0], 1)


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


def batches(batch_size: int, ranks: int) -> list[Any]:
    order = Sampler(
        num_samples=12,
        batch_size=batch_size,
        local_dp_ranks=tuple(range(ranks)),
        dp_size=ranks,
        seed=3,
        shuffle=True,
        keep_partial=False,
    )
    return [
        1.0 + index.reshape(-1, 1, 1, 1, 1).astype(float) for index in order.batches(0)
    ]


def test_ranks_take_samples_in_turn() -> None:
    rollout: Any = SimpleNamespace(num_steps=1, num_members=1)
    theirs = batches(batch_size=4, ranks=1)
    run: Any = SimpleNamespace(x=theirs, y=theirs)
    ours = batches(batch_size=2, ranks=2)
    assert len(ours) == len(theirs) == 3
    for index, array in enumerate(ours):
        batch: Any = SimpleNamespace(x=array, y=array)
        assert not np.array_equal(array, theirs[index]), "another order"
        assert _batch_error(batch, run, index, rollout, ranks=2) == 0
        assert _batch_error(batch, run, index, rollout, ranks=1) > 0
