"""Runs items in processes of their own, with time limits, and keeps what they found.

Nothing here uses JAX: the device belongs to the processes. One that hangs is ended with
all that it started; one that ends without a word is started again for the items that
are left.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu import records
from benchmarks.gpu.records import Setting

ROOT = Path(__file__).parents[2]
CHILD = ("-m", "benchmarks.gpu.child")
# Seconds between two looks at the processes, and those to end in after SIGTERM.
_LOOK, _GRACE = 0.2, 5.0
# With less time left no process is started.
LEAST = 10.0
_TAIL = 2000


@dataclass(frozen=True)
class Job:
    """Items of a part that one process runs, one after another.

    Attributes:
        part: its name.
        items: their names.
        seconds: limit of one item; after it the process is ended.
        environment: further variables of the process.
    """

    part: str
    items: tuple[str, ...]
    seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class _Process:
    """A process and what it was started for."""

    job: Job
    process: subprocess.Popen[bytes]
    log: Path
    # The item that runs and since when, as far as its record says.
    current: str | None = None
    since: float = 0.0


class Runner:
    """Runs jobs until a deadline.

    Args:
        setting: setting of all items.
        deadline: deadline in seconds of `time.monotonic`; no process lives longer.
        report: called with part, item and record after an item has ended.
        child: arguments of the interpreter before those of the child.
    """

    def __init__(
        self,
        setting: Setting,
        deadline: float,
        report: Callable[[str, str, records.Record], None],
        child: Sequence[str] = CHILD,
    ) -> None:
        self.setting, self.deadline = setting, deadline
        self.report, self.child = report, tuple(child)
        self._reported: set[tuple[str, str]] = set()
        self._number = 0

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()

    def side_by_side(self, jobs: Sequence[Job], seconds: float) -> None:
        """Runs jobs at the same time, and ends those that are left after a while.

        Args:
            jobs: each is one process at a time.
            seconds: seconds of all together, if the deadline is not sooner.
        """
        until = min(time.monotonic() + seconds, self.deadline)
        running: list[_Process] = []
        try:
            for job in jobs:
                self._start(job, running, until)
            while running:
                time.sleep(_LOOK)
                for child in list(running):
                    self._look(child, running, until)
        finally:
            # Also where the command itself is interrupted.
            for child in running:
                self._end(child)
                self._finish(child, records.STOPPED, "the command was interrupted")

    def _start(self, job: Job, running: list[_Process], until: float) -> None:
        if not job.items or until - time.monotonic() < LEAST:
            return
        self._number += 1
        log = self.setting.out / "logs" / f"{job.part}-{self._number}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        options = json.dumps(asdict(self.setting), default=str)
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, *self.child, job.part, options, *job.items],
                cwd=ROOT,
                env={**os.environ, **self._environment(), **job.environment},
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        now = time.monotonic()
        running.append(_Process(job, process, log, None, now))

    def _environment(self) -> dict[str, str]:
        """Variables of all processes: the root of the checkout, and the caches."""
        cache = self.setting.out / "cache"
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        return {
            "PYTHONPATH": path.rstrip(os.pathsep),
            "PYTHONUNBUFFERED": "1",
            "TF_CPP_MIN_LOG_LEVEL": "1",
            # Several processes share the memory of the device.
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "JAX_COMPILATION_CACHE_DIR": os.environ.get(
                "JAX_COMPILATION_CACHE_DIR", str(cache / "jax")
            ),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
        }

    def _look(self, child: _Process, running: list[_Process], until: float) -> None:
        """Reports what has ended, and ends what takes too long."""
        now = time.monotonic()
        self._follow(child, now)
        if child.process.poll() is not None:
            running.remove(child)
            self._end(child)
            code = child.process.returncode
            self._continue(running, code)
            self._finish(child, records.CRASHED, f"the process ended with code {code}")
            self._start(self._rest(child), running, until)
        elif now > until or now - child.since > child.job.seconds:
            running.remove(child)
            self._end(child)
            self._continue(running, child.process.returncode)
            self._finish(
                child, records.STOPPED, f"stopped after {now - child.since:.0f} s"
            )
            if now <= until:
                self._start(self._rest(child), running, until)

    def _follow(self, child: _Process, now: float) -> None:
        """Looks up which item a process is at."""
        for item in child.job.items:
            record = self._record(child, item)
            if record is None:
                continue
            if record["status"] != records.RUNNING:
                self._tell(child.job.part, item, record)
            elif child.current != item:
                child.current, child.since = item, now

    def _record(self, child: _Process, item: str) -> records.Record | None:
        """The record of an item; None if another process wrote it."""
        record = records.read(self.setting.out, child.job.part, item)
        written = record is not None and record.get("process") == child.process.pid
        return record if written else None

    def _finish(self, child: _Process, status: str, why: str) -> None:
        """Closes the record of the item that a process was at when it ended."""
        now = time.monotonic()
        self._follow(child, now)
        for item in child.job.items:
            record = self._record(child, item)
            begun = record is not None and record["status"] == records.RUNNING
            # A process that wrote nothing failed before its first item.
            silent = child.current is None and item == child.job.items[0]
            if not begun and not (silent and record is None):
                continue
            tail = child.log.read_text(errors="replace")[-_TAIL:]
            closed = {
                "result": {},
                "process": child.process.pid,
                **(record or {}),
                "status": status,
                "seconds": round(now - child.since, 1),
                "error": f"{why}\n{tail}",
            }
            records.write(self.setting.out, child.job.part, item, closed)
            self._tell(child.job.part, item, closed)

    def _rest(self, child: _Process) -> Job:
        """The job of the items that a process did not come to."""
        told = {item for part, item in self._reported if part == child.job.part}
        left = tuple(item for item in child.job.items if item not in told)
        return Job(child.job.part, left, child.job.seconds, child.job.environment)

    def _tell(self, part: str, item: str, record: records.Record) -> None:
        if (part, item) not in self._reported:
            self._reported.add((part, item))
            self.report(part, item, record)

    def forget(self) -> None:
        """Lets items be run again."""
        self._reported.clear()

    @staticmethod
    def _continue(running: Sequence[_Process], code: int | None) -> None:
        """Continues what one that did not end well may have stopped to be alone."""
        for child in running if code else ():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGCONT)

    @staticmethod
    def _end(child: _Process) -> None:
        """Ends a process and all that it started."""
        for kind, wait in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, kind)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(wait)
                if kind == signal.SIGKILL or not _alive(child.process.pid):
                    return


def _alive(group: int) -> bool:
    """Whether a process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def any_left(
    setting: Setting, part: str, items: Sequence[str], *, wrong: bool = False
) -> list[str]:
    """Returns the items that are not done, those that were never begun first.

    Args:
        setting: setting that says where the records are.
        part: its name.
        items: all of the part.
        wrong: whether items whose result is wrong are to be run again, too.
    """
    order: list[tuple[bool, str]] = []
    for item in items:
        record: Any = records.read(setting.out, part, item)
        bad = wrong and record is not None and is_wrong(record)
        if record is None or record["status"] != records.DONE or bad:
            order.append((record is not None, item))
    return [item for _, item in sorted(order, key=lambda entry: entry[0])]


def is_wrong(record: records.Record) -> bool:
    """Whether a result differs from what it should be."""
    return (record["result"] or {}).get("right") is False
