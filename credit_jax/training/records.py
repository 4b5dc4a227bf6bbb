"""One record of a run for each logged step: `training_steps.jsonl`."""

from __future__ import annotations

import json
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

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


class Tracker:
    """A destination of the numbers of a run, such as TensorBoard; this one is none."""

    def write_step(self, step: int, values: Mapping[str, float]) -> None:
        """Receives the finite numbers of a record of a step."""

    def write_epoch(self, row: Mapping[str, float]) -> None:
        """Receives the row of an epoch of `training_log.csv`."""

    def close(self) -> None:
        """Finishes the run and closes the destination."""


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
