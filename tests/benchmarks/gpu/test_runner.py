"""Processes with time limits: what they found is kept, whatever happens to them."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import records
from benchmarks.gpu.records import Setting
from benchmarks.gpu.runner import Job, Runner, any_left

# A part whose items do what their names say.
CHILD = """
import os, subprocess, sys, time, types
from benchmarks.gpu import child

def run(item, setting, save):
    print("at", item)
    save({"begun": item})
    if item == "fails":
        raise MemoryError("RESOURCE_EXHAUSTED")
    if item == "crashes":
        os.kill(os.getpid(), 9)
    if item == "hangs":
        sleeper = subprocess.Popen(["sleep", "600"])
        save({"begun": item, "sleeper": sleeper.pid})
        time.sleep(600)
    return {"item": item, "size": setting.size}

if "breaks" in sys.argv:
    sys.exit("no module named that")
part = types.ModuleType("benchmarks.gpu.fake")
part.run = run
sys.modules["benchmarks.gpu.fake"] = part
sys.exit(child.main(*sys.argv[1:]))
"""


class Told(list[tuple[str, str]]):
    """The items that a runner reported, with their status."""

    def __call__(self, part: str, item: str, record: records.Record) -> None:
        assert part == "fake"
        self.append((item, record["status"]))


@pytest.fixture
def runner(tmp_path: Path) -> Any:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    setting = Setting(tmp_path / "out", size="demo")
    return Runner(setting, time.monotonic() + 60, Told(), child=[str(script)])


def run(runner: Any, *items: str, seconds: float = 30.0) -> None:
    runner.side_by_side([Job("fake", items, seconds)], 50)


def record(runner: Any, item: str) -> records.Record:
    found = records.read(runner.setting.out, "fake", item)
    assert found is not None
    return found


def test_results_are_kept(runner: Any) -> None:
    run(runner, "a", "b c, d")
    assert runner.report == [("a", records.DONE), ("b c, d", records.DONE)]
    assert record(runner, "b c, d")["result"] == {"item": "b c, d", "size": "demo"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("item", "status", "word"),
    [
        ("fails", records.FAILED, "MemoryError: RESOURCE_EXHAUSTED"),
        ("crashes", records.CRASHED, "the process ended with code -9"),
    ],
)
def test_an_item_that_ends_its_process_costs_no_other(
    runner: Any, item: str, status: str, word: str
) -> None:
    run(runner, "a", item, "b")
    expected = [("a", records.DONE), (item, status), ("b", records.DONE)]
    assert runner.report == expected
    found = record(runner, item)
    assert found["result"] == {"begun": item}
    assert found["error"].startswith(word)


@pytest.mark.slow
def test_a_process_that_hangs_is_ended_with_what_it_started(runner: Any) -> None:
    run(runner, "hangs", "a", seconds=2)
    assert runner.report == [("hangs", records.STOPPED), ("a", records.DONE)]
    found = record(runner, "hangs")
    assert found["error"].startswith("stopped after 2 s")
    assert "at hangs" in found["error"]
    assert_ended(found["result"]["sleeper"])


def assert_ended(pid: int) -> None:
    """Asserts that a process ends; nobody may wait for it then.

    One that was killed still runs until the kernel comes to it.
    """
    deadline = time.monotonic() + 30
    state = ""
    while state != "Z" and time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return
        time.sleep(0.01)
    assert state == "Z"


@pytest.mark.slow
def test_a_process_that_does_not_start_is_reported_once(runner: Any) -> None:
    run(runner, "breaks", "a")
    assert runner.report == [("breaks", records.CRASHED), ("a", records.DONE)]
    assert "no module named that" in record(runner, "breaks")["error"]


@pytest.mark.slow
def test_nothing_outlives_the_deadline(
    runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.gpu.runner.LEAST", 2.0)
    began = time.monotonic()
    runner.deadline = began + 6
    jobs = [Job("fake", (item,), 100) for item in ("hangs", "a")]
    runner.side_by_side(jobs, 100)
    assert time.monotonic() - began < 18
    assert sorted(runner.report) == [("a", records.DONE), ("hangs", records.STOPPED)]
    # Too little is left for another process.
    run(runner, "b")
    assert records.read(runner.setting.out, "fake", "b") is None


@pytest.mark.slow
def test_an_interrupted_command_leaves_no_process(runner: Any) -> None:
    def interrupt(part: str, item: str, found: records.Record) -> None:
        del part, found
        if item == "a":
            raise KeyboardInterrupt

    runner.report = interrupt
    jobs = [Job("fake", ("hangs",), 100), Job("fake", ("a",), 100)]
    with pytest.raises(KeyboardInterrupt):
        runner.side_by_side(jobs, 100)
    found = record(runner, "hangs")
    assert found["status"] == records.STOPPED
    if "sleeper" in found["result"]:
        assert_ended(found["result"]["sleeper"])


def left(runner: Any, *items: str) -> Sequence[str]:
    return any_left(runner.setting, "fake", items)


@pytest.mark.slow
def test_what_is_done_is_not_run_again(runner: Any) -> None:
    run(runner, "a", "fails")
    # What was never begun comes before what failed.
    assert left(runner, "a", "fails", "b") == ["b", "fails"]
    run(runner, *left(runner, "a", "fails", "b"))
    assert left(runner, "a", "fails", "b") == ["fails"]


def test_what_is_wrong_is_run_again_by_the_next_call(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    for item, right in (("a", True), ("b", False)):
        record = {"status": records.DONE, "result": {"right": right}}
        records.write(tmp_path, "fake", item, record)
    assert any_left(setting, "fake", ["a", "b"]) == []
    assert any_left(setting, "fake", ["a", "b"], wrong=True) == ["b"]


def test_records_are_replaced_as_a_whole(tmp_path: Path) -> None:
    records.write(tmp_path, "part", "x: 1 / 2", {"status": records.DONE})
    path = records.path_of(tmp_path, "part", "x: 1 / 2")
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert os.sep not in path.name
    found = records.read(tmp_path, "part", "x: 1 / 2")
    assert found == {"item": "x: 1 / 2", "status": records.DONE}
