"""The CSV log in CREDIT's columns, TensorBoard events, and the progress display."""

import io

import pytest
from rich.console import Console

from credit_jax.training import display as display_module
from credit_jax.training.display import Display
from credit_jax.training.loggers import (
    CsvLog,
    TensorBoard,
    logged_metrics,
    read_log,
    tag,
)


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
    log.append(row(0))
    log.append(row(1) | {"valid_mae": 3.0})
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
        log.append(row(epoch))
    again = CsvLog(log.path, keep_until=2)
    again.append(row(2))
    assert [r["epoch"] for r in read_log(log.path)] == [0, 1, 2]
    assert CsvLog(log.path).rows == [], "a new run begins a new log"


def test_pandas_reads_it_as_credit_does(tmp_path):
    pandas = pytest.importorskip("pandas")
    log = CsvLog(tmp_path / "training_log.csv")
    log.append(row(0))
    assert list(pandas.read_csv(log.path)["valid_loss"]) == [2.0]


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


def test_tags_are_credits():
    assert tag("train_loss") == "loss/train"
    assert tag("lr") == "train/lr"


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


def test_bar_on_a_terminal(monkeypatch):
    text = shown(True, monkeypatch)
    assert "epoch 2/3" in text
    assert "saved" in text


def test_silent_processes_write_nothing():
    stream = io.StringIO()
    with Display(Console(file=stream), silent=True) as display:
        display.start("epoch 1/1", total=1)
        display.advance(1, 8, {"loss": 1.0})
        display.message("saved")
    assert stream.getvalue() == ""
