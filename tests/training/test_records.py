"""Records, loggers and the display of a run."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from rich.console import Console

from credit_jax.config import ConfigError
from credit_jax.training import loggers
from credit_jax.training.display import Display
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("records")
H100 = SimpleNamespace(
    device_kind="NVIDIA H100 80GB HBM3",
    process_index=jax.process_index(),
    memory_stats=lambda: {"peak_bytes_in_use": 7_000_000},
)


class Timed(loggers.StepRecords):
    """Records whose clock advances only when tests set it."""

    now = 1000.0

    def __init__(self, path: Any, **options: Any) -> None:
        def clock() -> float:
            return Timed.now

        work = loggers.MicroBatchWork(8, lambda: 989e12, [H100, H100])
        super().__init__(path, work, clock=clock, wall=clock, **options)

    def train(self, steps: range, seconds: float, **values: float) -> None:
        for step in steps:
            Timed.now += seconds
            numbers = {"loss": 1.0 / step, "grad_norm": 2.0, "learning_rate": 1e-3}
            times = {"data_wait_seconds": 0.5, "save_seconds": 0.0}
            numbers |= times | values
            self.updated(step=step, epoch=0, batch=step, count=1, **numbers)


@pytest.fixture
def path(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Timed, "now", 1000.0)
    return tmp_path / "steps.jsonl"


def test_a_record(path: Any) -> None:
    run = Timed(path)
    run.open(None)
    run.train(range(1, 3), seconds=2.0)
    Timed.now += 100  # a validation
    run.resume_clock()
    run.train(range(3, 4), seconds=4.0)
    run.close()
    start, first, second, third = loggers.read_records(path)
    assert start == {"event": "start", "time": 1000.0, "step": 0}
    assert "mfu" not in first, "it compiles"
    assert first["productive_seconds"] == 0
    expected = {
        "step": 2,
        "loss": 0.5,
        "step_seconds": 2.0,
        "samples_per_second": 4.0,
        "mfu": 0.25,  # one device-second on two devices in two seconds
        "memory_peak_bytes": 7_000_000,
        "goodput": 0.5,
    }
    assert {name: second[name] for name in expected} == expected
    assert second["host_memory_peak_bytes"] > 1e6
    assert (third["step_seconds"], third["mfu"]) == (4.0, 0.125)


def test_several_updates_of_a_record(path: Any) -> None:
    run = Timed(path, every=3)
    run.open(None)
    run.train(range(1, 9), seconds=0.1)
    assert len(list(loggers.read_records(path))) == 1
    run.flush()
    _, first, second = loggers.read_records(path)
    assert (first["step"], second["step"]) == (3, 6)
    assert second["loss"] == pytest.approx((1 / 4 + 1 / 5 + 1 / 6) / 3)
    assert second["samples_per_second"] == pytest.approx(80.0)
    assert second["model_flops"] == 989e12
    run.close()


def test_over_restarts(path: Any) -> None:
    """Killed in a write; updates after the checkpoint are lost."""
    run = Timed(path)
    run.open(None)
    run.train(range(1, 12), seconds=1.0)
    run.close()
    path.write_text(path.read_text() + '{"step": 12, "lo')
    Timed.now += 9.0
    again = Timed(path)
    again.open(6)
    assert again.first_start == 1000.0
    again.train(range(7, 17), seconds=1.0)
    again.close()
    found = list(loggers.read_records(path))
    assert [r["step"] for r in found] == [*range(7), 6, *range(7, 17)]
    assert found[7]["event"] == "start"
    assert found[-1]["goodput"] == pytest.approx((5 + 9) / 30), "5, then 9, of 30 s"
    new = Timed(path)
    new.open(None)
    Timed.now -= 50  # set back
    new.train(range(1, 2), seconds=0.0, grad_norm=float("inf"))
    new.close()
    _, line = path.read_text().splitlines()  # a new run begins a new file
    assert json.loads(line)["grad_norm"] is None, "a number that JSON has not"


def test_peaks() -> None:
    peaks = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H100 PCIe": 756e12, "cpu": None}
    assert {name: loggers.peak_of(name) for name in peaks} == peaks


def test_mlflow_goes_on_in_the_same_run(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
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
        tracker = loggers.mlflow_run(tmp_path, resumes=resumes)
        tracker.write_step(3, {"loss": 1.0})
        tracker.write_epoch({"epoch": 0, "train_loss": 2.0, "lr": float("nan")})
        tracker.close()
    lines = [(3, {"step/loss": 1.0}), (0, {"epoch": 0, "train_loss": 2.0}), "end"]
    assert calls == [{"run_name": tmp_path.name}, *lines, {"run_id": "r1"}, *lines]


def test_a_tracker_that_fails_does_not_end_a_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It loses its server after the first step, and is not called again."""
    calls: list[Any] = []

    def call(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) > 1:
            raise ConnectionError("no\n answer")

    methods = dict.fromkeys(("write_step", "write_epoch", "close"), call)
    tracker = loggers.guarded("mlflow", lambda: SimpleNamespace(**methods))
    for step in (1, 2, 3):
        tracker.write_step(step, {"loss": 1.0})
    tracker.write_epoch({"epoch": 0})
    tracker.close()
    assert [step for step, _ in calls] == [1, 2]
    (line,) = caplog.messages
    assert line.startswith("mlflow takes no more of this run (ConnectionError: no answ")

    def refused() -> Any:
        raise RuntimeError("no such store")

    with pytest.raises(ConfigError, match=r"use_mlflow: .*RuntimeError: no such store"):
        loggers.guarded("mlflow", refused)


def test_a_trace(tmp_path: Any) -> None:
    profile = loggers.Profile(tmp_path / "profile", *loggers.parse_updates("2:3"))
    assert "--profile 2:3 traced nothing" in (profile.note or "")
    for update in range(1, 6):
        if profile.before(update):
            profile.switch(update)
        assert profile._running == (update in (2, 3))
        jax.block_until_ready(jax.numpy.ones(3) + update)
    profile.close()
    assert profile.note is None
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))


CASES.rows(loggers.parse_updates, "5", "0:3", "7:6", "a:b")


def row(epoch: int) -> dict[str, float]:
    metrics = {"valid_rmse/S/prognostic/3d/T": 0.5, "valid_rmse": 0.25}
    losses = {"train_loss": 1.0 / (epoch + 1), "valid_loss": 2.0}
    return {"epoch": epoch, **metrics, **losses, "lr": 1e-3}


def test_columns_are_in_credits_order(tmp_path: Any) -> None:
    """A resumed run takes up the log; a new run begins a new one."""
    path = tmp_path / "training_log.csv"
    log = loggers.csv_log(path)
    second = row(1) | {"valid_mae": 3.0}
    for line in (row(0), second, row(2)):
        log.write_epoch(line)
    lines = path.read_text().splitlines()
    assert lines[0] == (
        "index,epoch,train_loss,valid_loss,valid_rmse,valid_mae,"
        "valid_rmse/S/prognostic/3d/T,lr"
    )
    assert lines[1].startswith("0,0,1.0,2.0,0.25,,0.5")
    loggers.csv_log(path, keep_until=2).write_epoch(row(7))
    assert loggers.read_log(path) == [row(0), second, row(7)]
    assert [p.name for p in tmp_path.iterdir()] == ["training_log.csv"]
    loggers.csv_log(path).write_epoch(row(0))
    assert loggers.read_log(path) == [row(0)]


def test_tensorboard(tmp_path: Any) -> None:
    board = loggers.tensorboard(tmp_path)
    board.write_epoch(row(0) | {"valid_bias": float("nan")})
    board.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    content = file.read_bytes()
    assert all(name in content for name in (b"loss/train", b"rmse/valid", b"train/lr"))
    assert b"bias" not in content, "values that are not finite are left out"


def test_chosen_metrics() -> None:
    metrics = {"rmse": 1.0, "rmse/S/T": 2.0, "rmse/S/U": 3.0}
    assert loggers.logged_metrics(metrics, True) == metrics
    assert loggers.logged_metrics(metrics, False) == {"rmse": 1.0}
    assert loggers.logged_metrics(metrics, ("U",)) == {"rmse": 1.0, "rmse/S/U": 3.0}


@pytest.mark.parametrize("silent", [False, True])
def test_plain_lines(silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(0, 10_000, 20))
    monkeypatch.setattr("time.monotonic", lambda: float(next(times)))
    console = Console(file=(stream := io.StringIO()), force_terminal=False, width=120)
    with Display(console, silent=silent) as display:
        display.start("epoch 2/3", total=4, done=1, left=4)
        for step in range(3):
            display.advance(1, 8, {"loss": 0.5 / (step + 1), "lr": 1e-3})
        display.message("saved")
    if silent:
        assert stream.getvalue() == ""
        return
    first, _, third, last = stream.getvalue().splitlines()
    assert first.startswith("epoch 2/3  2/4  loss 0.5  lr 0.001")
    assert third.startswith("epoch 2/3  4/4  loss 0.1667")
    assert "samples/s" in third
    assert "left" in third
    assert last == "saved"
