"""Records and loggers of a run."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from rich.console import Console

from credit_jax.config import ConfigError
from credit_jax.training import display as display_module
from credit_jax.training.display import Display
from credit_jax.training.loggers import (
    CsvLog,
    GuardedTracker,
    MlflowTracker,
    Profile,
    TensorBoard,
    logged_metrics,
    parse_updates,
    read_log,
)
from credit_jax.training.records import (
    MicroBatchWork,
    StepRecords,
    peak_of,
    read_records,
)


class Clock:
    """A clock that advances only when tests set it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


H100 = SimpleNamespace(
    device_kind="NVIDIA H100 80GB HBM3",
    process_index=jax.process_index(),
    memory_stats=lambda: {"peak_bytes_in_use": 7_000_000},
)


def records(path: Path, clock: Clock, **options: Any) -> StepRecords:
    work = MicroBatchWork(8, lambda: 989e12, [H100, H100])
    return StepRecords(path, work, clock=clock, wall=clock, **options)


def train(run: StepRecords, clock: Clock, steps: range, seconds: float) -> None:
    for step in steps:
        clock.now += seconds
        values = {"loss": 1.0 / step, "grad_norm": 2.0, "learning_rate": 1e-3}
        times = {"data_wait_seconds": 0.5, "save_seconds": 0.0}
        run.updated(step=step, epoch=0, batch=step, count=1, **values, **times)


def test_a_record(tmp_path: Path) -> None:
    clock = Clock()
    run = records(tmp_path / "steps.jsonl", clock)
    run.open(None)
    train(run, clock, range(1, 3), seconds=2.0)
    clock.now += 100  # a validation
    run.resume_clock()
    train(run, clock, range(3, 4), seconds=4.0)
    run.close()
    start, first, second, third = read_records(run.path)
    assert start == {"event": "start", "time": 1000.0, "step": 0}
    assert "mfu" not in first, "it compiles"
    assert first["productive_seconds"] == 0
    assert second["step"] == 2
    assert second["loss"] == 0.5
    assert second["step_seconds"] == 2.0
    assert second["samples_per_second"] == 4.0
    assert second["mfu"] == 0.25, "one device-second on two devices in two seconds"
    assert second["memory_peak_bytes"] == 7_000_000
    assert second["host_memory_peak_bytes"] > 1e6
    assert second["goodput"] == 0.5
    assert third["step_seconds"] == 4.0
    assert third["mfu"] == 0.125


def test_records_are_there_at_once_when_asked(tmp_path: Path) -> None:
    clock = Clock()
    run = records(tmp_path / "steps.jsonl", clock)
    run.open(None)
    train(run, clock, range(1, 4), seconds=0.1)
    assert len(list(read_records(run.path))) == 1
    run.flush()
    assert len(list(read_records(run.path))) == 4
    run.close()


def test_several_updates_of_a_record(tmp_path: Path) -> None:
    clock = Clock()
    run = records(tmp_path / "steps.jsonl", clock, every=3)
    run.open(None)
    train(run, clock, range(1, 9), seconds=1.0)
    run.close()
    _, first, second = read_records(run.path)
    assert (first["step"], second["step"]) == (3, 6)
    assert second["loss"] == pytest.approx((1 / 4 + 1 / 5 + 1 / 6) / 3)
    assert second["samples_per_second"] == 8.0
    assert second["model_flops"] == 989e12


def test_over_restarts(tmp_path: Path) -> None:
    """Killed in a write; updates after the checkpoint are lost."""
    clock, path = Clock(), tmp_path / "steps.jsonl"
    run = records(path, clock)
    run.open(None)
    train(run, clock, range(1, 12), seconds=1.0)
    run.close()
    path.write_text(path.read_text() + '{"step": 12, "lo')
    clock.now += 9.0
    again = records(path, clock)
    again.open(6)
    assert again.first_start == 1000.0
    train(again, clock, range(7, 17), seconds=1.0)
    again.close()
    found = list(read_records(path))
    assert [r["step"] for r in found] == [*range(7), 6, *range(7, 17)]
    assert found[7]["event"] == "start"
    assert found[-1]["goodput"] == pytest.approx((5 + 9) / 30), "5, then 9, of 30 s"
    new = records(path, clock)
    new.open(None)
    new.close()
    assert len(list(read_records(path))) == 1, "a new run begins a new file"


def test_numbers_that_json_has_not(tmp_path: Path) -> None:
    clock = Clock()
    run = records(tmp_path / "steps.jsonl", clock)
    run.open(None)
    values = {"loss": 1.0, "grad_norm": float("inf"), "save_seconds": 0.0}
    clock.now -= 50  # set back
    run.updated(step=1, epoch=0, batch=1, count=1, **values)
    run.close()
    assert json.loads(run.path.read_text().splitlines()[1])["grad_norm"] is None


def test_peaks() -> None:
    assert peak_of("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_of("NVIDIA H100 PCIe") == 756e12
    assert peak_of("cpu") is None


def test_mlflow_goes_on_in_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def start_run(**options: Any) -> Any:
        calls.append(options)
        return SimpleNamespace(info=SimpleNamespace(run_id="r1"))

    fake = SimpleNamespace(
        start_run=start_run,
        log_metrics=lambda values, step: calls.append((step, values)),
        end_run=lambda: calls.append("end"),
    )
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    for resumes in (False, True):
        tracker = MlflowTracker(tmp_path, resumes=resumes)
        tracker.write_step(3, {"loss": 1.0})
        tracker.write_epoch({"epoch": 0, "train_loss": 2.0, "lr": float("nan")})
        tracker.close()
    assert calls[0] == {"run_name": tmp_path.name}
    assert calls[1:4] == [
        (3, {"step/loss": 1.0}),
        (0, {"epoch": 0, "train_loss": 2.0}),
        "end",
    ]
    assert calls[4] == {"run_id": "r1"}


class Failing:
    """Loses its server after the first step."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def write_step(self, step: int, values: Mapping[str, float]) -> None:
        if self.steps:
            raise ConnectionError("no\n answer")
        self.steps.append(step)

    def write_epoch(self, row: Mapping[str, float]) -> None:
        pytest.fail("it has failed before")

    def close(self) -> None:
        pytest.fail("it has failed before")


def test_a_tracker_that_fails_does_not_end_a_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failing = Failing()
    tracker = GuardedTracker("mlflow", lambda: failing)
    for step in (1, 2, 3):
        tracker.write_step(step, {"loss": 1.0})
    tracker.write_epoch({"epoch": 0})
    tracker.close()
    assert failing.steps == [1]
    (line,) = caplog.messages
    assert line.startswith("mlflow takes no more of this run (ConnectionError: no answ")

    def refused() -> Failing:
        raise RuntimeError("no such store")

    with pytest.raises(ConfigError, match=r"use_mlflow: .*RuntimeError: no such store"):
        GuardedTracker("mlflow", refused)


def test_a_trace(tmp_path: Path) -> None:
    profile = Profile(tmp_path / "profile", 2, 3)
    assert "--profile 2:3 traced nothing" in (profile.note or "")
    for update in range(1, 6):
        if profile.before(update):
            profile.switch(update)
        assert profile._running == (update in (2, 3))
        jax.block_until_ready(jax.numpy.ones(3) + update)
    profile.close()
    assert profile.note is None
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


@pytest.mark.parametrize("text", ["5", "0:3", "7:6", "a:b"])
def test_updates_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="--profile must be FIRST:LAST"):
        parse_updates(text)


# The CSV log in CREDIT's columns, TensorBoard events, and the progress display.


def row(epoch):
    return {
        "epoch": epoch,
        "train_loss": 1.0 / (epoch + 1),
        "valid_rmse/S/prognostic/3d/T": 0.5,
        "valid_rmse": 0.25,
        "valid_loss": 2.0,
        "lr": 1e-3,
    }


def test_columns_are_in_credits_order(tmp_path):
    log = CsvLog(tmp_path / "training_log.csv")
    log.write_epoch(row(0))
    log.write_epoch(row(1) | {"valid_mae": 3.0})
    lines = log.path.read_text().splitlines()
    assert lines[0] == (
        "index,epoch,train_loss,valid_loss,valid_rmse,valid_mae,"
        "valid_rmse/S/prognostic/3d/T,lr"
    )
    assert lines[1].startswith("0,0,1.0,2.0,0.25,,0.5")
    assert read_log(log.path) == [row(0), row(1) | {"valid_mae": 3.0}]
    assert [p.name for p in tmp_path.iterdir()] == ["training_log.csv"]


def test_a_resumed_run_takes_up_the_log(tmp_path):
    log = CsvLog(tmp_path / "training_log.csv")
    for epoch in range(3):
        log.write_epoch(row(epoch))
    again = CsvLog(log.path, keep_until=2)
    again.write_epoch(row(2))
    assert [r["epoch"] for r in read_log(log.path)] == [0, 1, 2]
    assert CsvLog(log.path).rows == [], "a new run begins a new log"


def test_tensorboard(tmp_path):
    board = TensorBoard(tmp_path)
    board.write_epoch(row(0) | {"valid_bias": float("nan")})
    board.close()
    files = list((tmp_path / "tensorboard").iterdir())
    assert len(files) == 1
    content = files[0].read_bytes()
    for name in ("loss/train", "rmse/valid", "train/lr"):
        assert name.encode() in content
    assert b"bias" not in content, "values that are not finite are left out"


def test_chosen_metrics():
    metrics = {"rmse": 1.0, "rmse/S/T": 2.0, "rmse/S/U": 3.0}
    assert logged_metrics(metrics, True) == metrics
    assert logged_metrics(metrics, False) == {"rmse": 1.0}
    assert logged_metrics(metrics, ("U",)) == {"rmse": 1.0, "rmse/S/U": 3.0}


def shown(terminal, monkeypatch):
    times = iter(range(0, 10_000, 20))
    monkeypatch.setattr(display_module.time, "monotonic", lambda: float(next(times)))
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=120)
    with Display(console) as display:
        display.start("epoch 2/3", total=4, done=1, left=4)
        for step in range(3):
            numbers = {"loss": 0.5 / (step + 1), "lr": 1e-3}
            display.advance(1, 8, numbers)
        display.message("saved")
    return stream.getvalue()


def test_plain_lines(monkeypatch):
    text = shown(False, monkeypatch)
    lines = text.splitlines()
    assert lines[0].startswith("epoch 2/3  2/4  loss 0.5  lr 0.001")
    assert lines[2].startswith("epoch 2/3  4/4  loss 0.1667")
    assert "samples/s" in lines[2]
    assert "left" in lines[2]
    assert lines[3] == "saved"


def test_silent_processes_write_nothing():
    stream = io.StringIO()
    with Display(Console(file=stream), silent=True) as display:
        display.start("epoch 1/1", total=1)
        display.advance(1, 8, {"loss": 1.0})
        display.message("saved")
    assert stream.getvalue() == ""
