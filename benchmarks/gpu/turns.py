"""Timing beside processes that compile: all others stand still meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Iterator

from benchmarks.gpu import records
from benchmarks.gpu.records import Setting


@contextlib.contextmanager
def alone(setting: Setting) -> Iterator[None]:
    """Context manager: within, no other item's process uses a core or the device.

    One process at a time is within. Those of other items are stopped, with all that
    they started, and go on afterwards.

    Args:
        setting: setting that says where the records are, which name the processes.
    """
    setting.out.mkdir(parents=True, exist_ok=True)
    with (setting.out / "turn").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        stopped = [group for group in _others(setting) if _send(group, signal.SIGSTOP)]
        try:
            yield
        finally:
            for group in stopped:
                _send(group, signal.SIGCONT)


def _others(setting: Setting) -> list[int]:
    """Process groups of the items that run, but for the caller's."""
    running = set()
    for path in (setting.out / "items").glob("*/*.json"):
        record = json.loads(path.read_text())
        if record["status"] == records.RUNNING:
            running.add(record["process"])
    return sorted(running - {os.getpid()})


def _send(group: int, sent: signal.Signals) -> bool:
    """Sends a signal to a process group; returns whether there is one."""
    try:
        os.killpg(group, sent)
    except ProcessLookupError:
        return False
    return True
