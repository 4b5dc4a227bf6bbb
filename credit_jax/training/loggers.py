"""Logs of a run: `training_log.csv` in CREDIT's columns, trackers, traces for xprof."""

from __future__ import annotations

import csv
import importlib
import json
import logging
import math
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from credit_jax.config import Config, ConfigError, dump_config
from credit_jax.io.activity import activity
from credit_jax.io.atomic import new_file
from credit_jax.io.errors import write_errors

RECORDS_NAME = "training_steps.jsonl"
_FLUSH_SECONDS = 1.0

# Peak FLOP/s of dense bfloat16 matmuls (float16 on V100) on one device, as JAX counts
# devices; from data sheets of NVIDIA and cloud.google.com/tpu/docs.
PEAKS = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100": 989e12,
    "NVIDIA GH200": 989e12,
    "NVIDIA A100": 312e12,
    "NVIDIA B200": 2250e12,
    "Tesla V100": 125e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
}

LogRecord = dict[str, Any]


def peak_of(device_kind: str) -> float | None:
    """Returns the peak FLOP/s of a device by its `device_kind`; None if unknown."""
    peaks = (peak for name, peak in PEAKS.items() if device_kind.startswith(name))
    return next(peaks, None)


@dataclass(frozen=True)
class Tracker:
    """A destination of the numbers of a run, such as TensorBoard; this one is none."""

    # Takes the finite numbers of a record of a step.
    write_step: Callable[[int, Mapping[str, float]], None] = lambda step, values: None
    # Takes the row of an epoch of `training_log.csv`.
    write_epoch: Callable[[Mapping[str, float]], None] = lambda row: None
    # Finishes the run and closes the destination.
    close: Callable[[], Any] = lambda: None


@dataclass(frozen=True)
class MicroBatchWork:
    """The work of a micro-batch, for throughput and model FLOP utilization."""

    samples: int  # samples of a micro-batch, over all processes
    # Returns the floating-point operations of a micro-batch, without recomputation;
    # called once.
    flops: Callable[[], float]
    devices: Sequence[Any]  # all devices of the run


@dataclass
class StepRecords:
    """Writes one record for every `every` updates."""

    path: Path
    work: MicroBatchWork
    every: int = 1  # updates per record
    trackers: Sequence[Tracker] = ()  # further destinations of the records
    clock: Callable[[], float] = time.monotonic  # monotonic time in seconds
    wall: Callable[[], float] = time.time  # time in seconds since 1970
    _productive: float = 0.0
    _updates: list[dict[str, float]] = field(default_factory=list)
    _warm: bool = False
    _flops: float | None = None
    _last: LogRecord = field(default_factory=dict)

    def open(self, step: int | None) -> None:
        """Opens a new file, or continues that of the run that resumes from a step."""
        records = list[LogRecord]()
        if step is not None and self.path.exists():
            # Updates after the checkpoint are trained again.
            records = [r for r in read_records(self.path) if r["step"] <= step]
        start = {"event": "start", "time": self.wall(), "step": step or 0}
        records.append(start)
        # When the run began for the first time, in seconds since 1970.
        self.first_start = min(r["time"] for r in records if r.get("event") == "start")
        self._productive = sum(r.get("productive_seconds", 0.0) for r in records)
        with new_file(self.path) as partial:
            partial.write_text("".join(f"{json.dumps(record)}\n" for record in records))
        self._file = self.path.open("a")
        self._flushed = self._ended_at = self.clock()

    @property
    def shown(self) -> dict[str, float]:
        """Peak memory of a device, or of the host, and MFU, for the display."""
        last, host = self._last, self._last.get("host_memory_peak_bytes", 0)
        memory = last.get("memory_peak_bytes", host)
        displayed = {"memory GB": memory / 1e9} if memory else {}
        return displayed | ({"MFU %": 100 * last["mfu"]} if "mfu" in last else {})

    def resume_clock(self) -> None:
        """Restarts the clock, so that a validation does not count for an update."""
        self._ended_at = self.clock()

    def change_work(self, work: MicroBatchWork) -> None:
        """Counts further updates with other work, in records of their own."""
        if self._updates:
            self._write()
        self.work, self._flops = work, None

    def updated(
        self, *, step: int, epoch: int, batch: int, count: int, **values: float
    ) -> None:
        """Adds an update that has ended; writes a record after each `every` ones."""
        now = self.clock()
        seconds, self._ended_at = now - self._ended_at, now
        update = {"seconds": seconds, "count": float(count), **values}
        update["productive"] = seconds if self._warm else 0.0
        self._updates.append(update)
        # Micro-batches seen, and those of the epoch that have ended.
        position = {"step": step, "epoch": epoch, "batch": batch}
        self._place: LogRecord = {**position, "time": self.wall()}
        if len(self._updates) < self.every:
            return
        self._write()
        self._warm = True

    def flush(self) -> None:
        """Flushes the file; to be called before a checkpoint is saved."""
        with write_errors(self.path):
            self._file.flush()
        self._flushed = self.clock()

    def close(self) -> None:
        for tracker in self.trackers:
            tracker.close()
        with write_errors(self.path):
            self._file.close()

    # -------------------------------------------------------------- one record

    def _write(self) -> None:
        updates = self._updates
        count = sum(update["count"] for update in updates)
        seconds = sum(update["seconds"] for update in updates)
        productive = sum(update["productive"] for update in updates)
        self._productive += productive
        summed = ("seconds", "count", "productive", "save_seconds")
        others = [name for name in updates[-1] if name not in summed]
        # Kilobytes on Linux, bytes on macOS.
        unit = 1 if sys.platform == "darwin" else 1024
        record: LogRecord = {
            "host_memory_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            * unit
        }
        local = [d for d in self.work.devices if d.process_index == jax.process_index()]
        stats = [
            s for d in local if (s := d.memory_stats()) and "peak_bytes_in_use" in s
        ]
        if stats:
            record["memory_peak_bytes"] = max(s["peak_bytes_in_use"] for s in stats)
        # Productive fraction of the time since the start; the wall clock may jump.
        total = self.wall() - self.first_start
        goodput = min(1.0, self._productive / total) if total > 0 else 0.0
        if self._flops is None:
            with activity("counting the operations of a step"):
                self._flops = self.work.flops()
            self._ended_at = self.clock()
        flops, peak = count * self._flops, peak_of(self.work.devices[0].device_kind)
        operations = {"model_flops": flops / len(updates)}
        if peak is not None and self._warm:
            full = max(seconds, 1e-9) * peak * len(self.work.devices)
            operations["mfu"] = flops / full
        self._last = record = self._place | {
            **{name: float(np.mean([u[name] for u in updates])) for name in others},
            "step_seconds": seconds / len(updates),
            "save_seconds": sum(update["save_seconds"] for update in updates),
            "samples_per_second": count * self.work.samples / max(seconds, 1e-9),
            **operations,
            **record,
            "productive_seconds": productive,
            "goodput": goodput,
        }
        self._updates.clear()
        finite = {
            key: value if math.isfinite(value) else None
            for key, value in record.items()
        }
        with write_errors(self.path):
            self._file.write(f"{json.dumps(finite)}\n")
        if self.clock() - self._flushed >= _FLUSH_SECONDS:
            self.flush()
        numbers = {k: v for k, v in finite.items() if v is not None and k != "step"}
        for tracker in self.trackers:
            tracker.write_step(record["step"], numbers)


def read_records(path: str | Path) -> Iterator[LogRecord]:
    """The records of a file; a last line that was cut off by a kill is left out."""
    with Path(path).open() as file:
        for line in file:
            if not line.endswith("\n"):
                return
            yield json.loads(line)


Number = int | float
LogRow = dict[str, Number]

LOG_NAME = "training_log.csv"
# CREDIT's order; other columns follow as they come.
FIRST_COLUMNS = (
    "index",
    "epoch",
    "train_history_len",
    "train_forecast_len",
    "valid_history_len",
    "valid_forecast_len",
    "train_loss",
    "valid_loss",
    "train_rmse",
    "valid_rmse",
    "train_r2score",
    "valid_r2score",
    "train_bias",
    "valid_bias",
    "train_acc",
    "valid_acc",
    "train_mae",
    "valid_mae",
)


def csv_log(path: str | Path, *, keep_until: int = 0) -> Tracker:
    """One row an epoch. Each new row replaces the file with a complete one.

    Rows of epochs below `keep_until` are kept; 0 begins a new log.
    """
    path, rows = Path(path), list[LogRow]()
    if keep_until > 0 and path.exists():
        rows = [row for row in read_log(path) if row["epoch"] < keep_until]

    def write_epoch(row: Mapping[str, Number]) -> None:
        rows.append(dict(row))
        names = dict.fromkeys(name for row in rows for name in row)
        first = [name for name in FIRST_COLUMNS if name in names or name == "index"]
        columns = first + [name for name in names if name not in first]
        with (
            write_errors(path),
            new_file(path) as partial,
            partial.open("w", newline="") as file,
        ):
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows({"index": k} | each for k, each in enumerate(rows))

    return Tracker(write_epoch=write_epoch)


def read_log(path: str | Path) -> list[LogRow]:
    """The rows of a `training_log.csv` of CREDIT or credit_jax, without empty cells."""
    with Path(path).open(newline="") as file:
        rows: list[LogRow] = [
            {
                key: (int(value) if value.isdigit() else float(value))
                for key, value in row.items()
                if value
            }
            for row in csv.DictReader(file)
        ]
    for row in rows:
        row.pop("index", None)
    return rows


def tensorboard(save_loc: str | Path) -> Tracker:
    """Event files below `tensorboard/`; CREDIT's tags: "rmse/valid", "train/lr"."""

    @cache  # opened at the first row
    def writer() -> Any:
        # tensorboardX imports PyTorch where that is installed: a second or more.
        from tensorboardX import SummaryWriter

        return SummaryWriter(logdir=str(Path(save_loc) / "tensorboard"))

    def write(step: int, values: Mapping[str, Number]) -> None:
        for name, value in values.items():
            writer().add_scalar(name, value, step)

    def write_epoch(row: Mapping[str, Number]) -> None:
        finite = {tag(k): x for k, x in _finite(row).items() if k != "epoch"}
        write(int(row["epoch"]), finite)
        writer().flush()

    return Tracker(
        lambda step, values: write(step, _of_steps(values)),
        write_epoch,
        lambda: writer.cache_info().currsize and writer().close(),
    )


def tag(column: str) -> str:
    """TensorBoard's name of a column.

    >>> tag("valid_rmse/ERA5/prognostic/3d/T"), tag("lr")
    ('rmse/ERA5/prognostic/3d/T/valid', 'train/lr')
    """
    phase, _, name = column.partition("_")
    return f"{name}/{phase}" if phase in ("train", "valid") else f"train/{column}"


def logged_metrics(
    metrics: Mapping[str, Number], chosen: bool | Sequence[str]
) -> dict[str, Number]:
    """The metrics to log: those over all variables, and those of chosen variables."""
    # `trainer.save_metric_vars`, substrings of names such as "rmse/ERA5/...".
    if chosen is True:
        return dict(metrics)
    patterns = [] if chosen is False else list(chosen)
    return {
        name: value
        for name, value in metrics.items()
        if "/" not in name or any(text in name for text in patterns)
    }


_LOG = logging.getLogger("credit_jax")
_LONGEST = 200  # characters of an error


def guarded(name: str, begin: Callable[[], Tracker]) -> Tracker:
    """A tracker whose failures do not end the run."""
    try:
        tracker = begin()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            [
                f"trainer.use_{name}: {name} cannot begin the run ({_line(error)}); "
                "correct its settings, or write false"
            ]
        ) from error
    has_failed = False

    def call(method: str, *values: Any) -> None:
        nonlocal has_failed
        try:
            if not has_failed:
                getattr(tracker, method)(*values)
        except Exception as error:
            has_failed = True
            _LOG.warning(
                "%s takes no more of this run (%s); the records in the folder of the "
                "run go on",
                name,
                _line(error),
            )

    methods = "write_step", "write_epoch", "close"
    return Tracker(*(partial(call, method) for method in methods))


def wandb_run(config: Config, folder: Path, first_start: float) -> Tracker:
    """A run of Weights & Biases, which a resumed run continues."""
    # wandb reads WANDB_PROJECT and the like itself.
    run: Any = importlib.import_module("wandb").init(
        name=folder.name,
        id=f"{folder.name}-{int(first_start)}",
        resume="allow",
        dir=str(folder),
        config=dump_config(config),
    )
    return Tracker(
        lambda step, values: run.log(_of_steps(values), step=step),
        lambda row: run.log(_finite(row)),  # of the last step that was written
        run.finish,
    )


def mlflow_run(folder: Path, *, resumes: bool) -> Tracker:
    """A run of MLflow, whose id in the folder lets a resumed run continue it."""
    # MLflow itself reads MLFLOW_TRACKING_URI and the like.
    mlflow: Any = importlib.import_module("mlflow")
    path = folder / "mlflow_run_id"
    if resumes and path.exists():
        mlflow.start_run(run_id=path.read_text().strip())
    else:
        run = mlflow.start_run(run_name=folder.name)
        with new_file(path) as file:
            file.write_text(run.info.run_id)
    return Tracker(
        lambda step, values: mlflow.log_metrics(_of_steps(values), step=step),
        lambda row: mlflow.log_metrics(_finite(row), step=int(row["epoch"])),
        mlflow.end_run,
    )


def _line(error: Exception) -> str:
    """An error in one line."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _finite(row: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if math.isfinite(value)}


def _of_steps(values: Mapping[str, float]) -> dict[str, float]:
    return {f"step/{name}": value for name, value in values.items()}


class Profile:
    """Traces the updates first to last of this command, counted from 1."""

    def __init__(self, folder: Path, first: int, last: int) -> None:
        """Names the folder of the traces, and the updates, both included."""
        self._folder, self._first, self._last = folder, first, last
        self._running = self._began = False

    def before(self, update: int) -> bool:
        """Whether to finish the pending updates and `switch` before a next update."""
        return update == self._first or (self._running and update == self._last + 1)

    def switch(self, update: int) -> None:
        """Begins or ends the trace, to be called while nothing runs on the devices."""
        if update == self._first and not self._running:
            jax.profiler.start_trace(str(self._folder))
            self._running = self._began = True
        elif self._running:
            self.close()

    @property
    def note(self) -> str | None:
        """A line for the user if no update was traced."""
        if self._began:
            return None
        return (
            f"note: --profile {self._first}:{self._last} traced nothing, as this "
            f"command ended before its update {self._first}"
        )

    def close(self) -> None:
        if self._running:
            jax.profiler.stop_trace()
            self._running = False


def parse_updates(text: str) -> tuple[int, int]:
    """First and last update of "FIRST:LAST"."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if match and 1 <= int(match[1]) <= int(match[2]):
        return int(match[1]), int(match[2])
    raise ValueError(
        f"--profile must be FIRST:LAST, updates counted from 1, such as 100:105, got "
        f"{text!r}"
    )
