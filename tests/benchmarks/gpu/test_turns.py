"""What is timed runs alone: processes of other items stand still meanwhile."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from benchmarks.gpu import records
from benchmarks.gpu.records import Setting
from benchmarks.gpu.turns import alone


def state(pid: int) -> str:
    """The state of a process as the kernel names it, "T" if it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def wait_for(pid: int, states: str) -> bool:
    """Whether a process gets into one of the states."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if state(pid) in states:
            return True
        time.sleep(0.01)
    return False


def test_others_are_stopped_and_continue(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        for item, status, process in (
            ("itself", records.RUNNING, os.getpid()),
            ("other", records.RUNNING, other.pid),
            ("ended", records.DONE, other.pid),
            ("gone", records.RUNNING, 2**22 - 1),
        ):
            record = {"status": status, "process": process}
            records.write(tmp_path, "part", item, record)
        with alone(setting):
            assert wait_for(other.pid, "T")
        assert wait_for(other.pid, "SR")
    finally:
        other.kill()
        other.wait()
