"""The benchmark on a GPU: its parts, its processes and the values it compares with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.accelerator.targets import TARGETS
from benchmarks.gpu import bounds, draws, models, records, training, wheels
from benchmarks.gpu.__main__ import PARTS
from benchmarks.gpu.bounds import joined
from benchmarks.gpu.models import KERNELS, PLAIN
from benchmarks.gpu.records import Setting
from benchmarks.gpu.runner import ROOT, Job, Runner, any_left
from benchmarks.gpu.turns import alone
from benchmarks.speed.cases import make_case
from credit_jax.models.conversion import from_state_dict, to_state_dict

# What each table says of a rehearsal.
ROWS = {
    "device": "| copy |",
    "kernels": "2 of 2 are right",
    "models": "2 of 2 are right",
    "step": "| CREDIT, torch.compile |",
    "bounds": "| part | kernels | ms | bound, ms | ratio |",
    "forecast": "| CREDIT |",
    "loader": "| 0.25 degrees |",
    "training": "With kernels, 10 steps: right",
}


def rehearse(out: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command."""
    arguments = ["--out", str(out), "--archive", str(out / "more" / "gpu.tar.gz")]
    more = ["--minutes", "60", "--commit", "0123abc", "--rehearse"]
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *arguments, *more],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.reference
def test_every_part_runs_and_nothing_runs_twice(tmp_path: Path) -> None:
    done = rehearse(tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    out = tmp_path / "out"
    summary = json.loads((out / "gpu.json").read_text())
    assert summary["recipe"]["commit"] == "0123abc"
    assert "CPU" in summary["recipe"]["machine"]
    assert summary["parts"].keys() == PARTS.keys() == ROWS.keys()
    for part, counts in summary["parts"].items():
        assert counts["done"] == counts["items"] > 0, part
        assert counts["wrong"] == counts["left"] == 0, part
        text = (out / f"gpu_{part}.md").read_text()
        assert ROWS[part] in text
        assert ROWS[part] in (out / "gpu.md").read_text()
        assert "No table" not in text
        items = json.loads((out / f"gpu_{part}.json").read_text())["items"]
        assert all(record["result"] for record in items.values())
    with tarfile.open(out / "more" / "gpu.tar.gz") as archive:
        names = archive.getnames()
    assert {"gpu.md", "gpu.json", "items", "logs"} <= set(names)
    assert not any(name.startswith(("cache", "scratch")) for name in names)
    files = {path: path.stat().st_mtime_ns for path in (out / "items").rglob("*.json")}
    again = rehearse(out)
    assert again.returncode == 0, again.stdout + again.stderr
    assert files == {path: path.stat().st_mtime_ns for path in files}


# The profile of a step joined with its program.


PROGRAM = """
HloModule jit_step

%fused (p: f32[1000,1000]) -> f32[1000,1000] {
  %p = f32[1000,1000]{1,0} parameter(0)
  ROOT %n = f32[1000,1000]{1,0} negate(%p)
}

ENTRY %main (a: f32[1000,1000]) -> f32[1000,1000] {
  %a = f32[1000,1000]{1,0} parameter(0)
  %loop_fusion.1 = f32[1000,1000]{1,0} fusion(%a), kind=kLoop, calls=%fused, metadata={op_name="jit(step)/attention/neg"}
  %loop_fusion.2 = f32[1000,1000]{1,0} fusion(%loop_fusion.1), kind=kLoop, calls=%fused, metadata={op_name="jit(step)/norm/neg"}
  ROOT %loop_fusion.3 = f32[1000,1000]{1,0} fusion(%loop_fusion.2), kind=kLoop, calls=%fused, metadata={op_name="jit(step)/norm/neg"}
}
"""  # noqa: E501
H100 = TARGETS["h100"]
BOUND = 8e6 / H100.bandwidth + H100.launch


def test_times_are_joined_with_bounds_by_instruction() -> None:
    measured = {"loop_fusion.1": 2e-5, "loop_fusion.2": 5e-6, "* memcpy": 3e-6}
    found = joined(PROGRAM, measured, H100)
    assert found["bound"] == pytest.approx(3 * BOUND)
    assert found["kernels"] == pytest.approx(2.8e-5)
    part = found["parts"]["attention, forward"]
    assert part == {
        "kernels": 1,
        "seconds": pytest.approx(2e-5),
        "bound": pytest.approx(BOUND),
    }
    assert found["parts"]["norm, forward"]["kernels"] == 2
    # What loses most comes first, what was not seen last.
    names = [row["name"] for row in found["worst"]]
    assert names == ["loop_fusion.1", "loop_fusion.2", "loop_fusion.3"]
    assert found["rest"] == {"* memcpy": 3e-6}
    assert found["rest seconds"] == 3e-6
    assert found["not seen"] == {"number": 1, "of": 3, "first": ["loop_fusion.3"]}


def event(name: str, nanoseconds: float, **stats: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, duration_ns=nanoseconds, stats=stats.items())


def profile(**planes: dict[str, list[SimpleNamespace]]) -> SimpleNamespace:
    rows = {
        plane.replace("_", ":"): [
            SimpleNamespace(name=name, events=events) for name, events in rows.items()
        ]
        for plane, rows in planes.items()
    }
    return SimpleNamespace(
        planes=[SimpleNamespace(name=name, lines=lines) for name, lines in rows.items()]
    )


def test_the_streams_of_a_gpu_count_alone(tmp_path: Path, monkeypatch) -> None:
    streams = {
        "Stream #1(Compute)": [
            event("gemm", 6e3, hlo_op="dot.1"),
            event("gemm", 3e3, hlo_op="dot.1"),
            event("Memcpy", 3e3),
        ],
        "XLA Ops": [event("dot.1", 9e3, hlo_op="dot.1")],
    }
    host = {"thread": [event("dot.1", 1e6, hlo_op="dot.1")]}
    gpu = profile(**{"/device_GPU_0": streams, "/host_CPU": host})
    (tmp_path / "x.xplane.pb").touch()
    reader = SimpleNamespace(from_file=lambda path: gpu)
    monkeypatch.setattr(bounds, "ProfileData", reader)
    found = bounds.seconds_by_instruction(tmp_path, steps=3)
    assert found == {
        "dot.1": pytest.approx(3e-6),
        "* Memcpy": pytest.approx(1e-6),
    }


def test_bounds_are_of_the_measured_rates(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    assert bounds.target_of(setting) == H100
    found = {"copy": 3e12, "bfloat16, default": 7e14}
    record = {"status": records.DONE, "result": found}
    records.write(tmp_path, "device", "ceilings", record)
    target = bounds.target_of(setting)
    assert (target.bandwidth, target.peak) == (3e12, 7e14)


# Draws that are the same everywhere, and sketches that keep distances.


def test_draws_are_those_of_the_committed_values() -> None:
    """Other numbers would make `models.npz` and `training.json` wrong."""
    found = draws.uniform("input x", (4,))
    assert found.dtype == np.float32
    expected = [-1.4752376, -0.63788068, 0.6199926, -1.55740082]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))


def test_a_drawn_state_has_no_constant_weights() -> None:
    model_def = make_case("tiny", "fuxi").model_def
    state = draws.drawn_state(model_def)
    assert state.keys() == to_state_dict(*(model_def, *_weights(model_def))).keys()
    for name, array in state.items():
        if array.dtype.kind == "f" and array.size > 8:
            assert np.unique(array).size > array.size / 2, name
    for name in (name for name in state if name.endswith(("weight_u", "weight_v"))):
        assert np.linalg.norm(state[name]) == pytest.approx(1)


def _weights(model_def):
    return from_state_dict(model_def, draws.drawn_state(model_def))


def test_sketches_are_linear_and_keep_norms(rng) -> None:
    a, b = rng.normal(size=(2, 40, 500))
    sketch = draws.sketch("name", a)
    assert sketch.shape == (draws.SUMS,)
    both = draws.sketch("name", a + 2 * b)
    np.testing.assert_allclose(both, sketch + 2 * draws.sketch("name", b))
    ratios = [
        np.linalg.norm(draws.sketch(str(seed), a)) / np.linalg.norm(a)
        for seed in range(50)
    ]
    assert abs(np.mean(np.square(ratios)) - 1) < 0.1
    assert np.array_equal(draws.sketch("name", np.arange(3)), [0, 1, 2])


def test_distances_say_what_differs(rng) -> None:
    arrays = {"a": rng.normal(size=(300, 10)), "b": rng.normal(size=(7,))}

    def sketches(arrays):
        return {name: draws.sketch(name, array) for name, array in arrays.items()}

    expected = sketches(arrays)
    assert draws.distance(expected, expected) == 0
    noise = rng.normal(size=(300, 10))
    near = sketches({**arrays, "a": arrays["a"] + 1e-3 * noise})
    assert 5e-4 < draws.distance(near, expected) < 2e-3
    broken = sketches({**arrays, "a": np.full((300, 10), np.nan)})
    for other in (broken, {"a": expected["a"]}, {**expected, "b": expected["b"][:3]}):
        assert draws.distance(other, expected) == np.inf


# The committed values of CREDIT: how they are made, and what is not right.


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
def test_the_committed_values_are_those_of_the_command(credit, tmp_path: Path) -> None:
    del credit
    from benchmarks.gpu.reference import main

    families = ("debugger", "fuxi")
    main(["models", "--families", *families, "--out", str(tmp_path)])
    for family in families:
        made = models.read_values(tmp_path / models.VALUES.name, family)
        kept = models.read_values(models.VALUES, family)
        assert made.keys() == kept.keys()
        for name, array in kept.items():
            assert made[name] == pytest.approx(array, rel=1e-3, abs=1e-5), name


def test_a_wrong_prediction_or_gradient_is_not_right() -> None:
    values = models.read_values(models.VALUES, "debugger")
    found = models.distances("debugger", values, plain=True)
    assert found["forward"] <= 1e-6 > found["gradient"] / 10
    for name in models.TOLERANCES:
        key = next(key for key in values if key.startswith(name))
        wrong = {**values, key: values[key] * 1.01}
        again = models.distances("debugger", wrong, plain=True)
        assert again[name] > models.TOLERANCES[name]


# Processes with time limits: what they found is kept, whatever happens to them.


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


def left(runner: Any, *items: str) -> Sequence[str]:
    return any_left(runner.setting, "fake", items)


def test_what_is_wrong_is_run_again_by_the_next_call(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    for item, right in (("a", True), ("b", False)):
        record = {"status": records.DONE, "result": {"right": right}}
        records.write(tmp_path, "fake", item, record)
    assert any_left(setting, "fake", ["a", "b"]) == []
    assert any_left(setting, "fake", ["a", "b"], wrong=True) == ["b"]


# Losses beside those of a CPU.


@pytest.mark.slow
def test_the_committed_losses_are_those_of_the_demo_as_it_is() -> None:
    kept = json.loads(training.LOSSES.read_text())["losses"][training.DEMO]
    first = training.losses(training.DEMO, training.PLAIN, 2)
    np.testing.assert_allclose(first, kept[training.PLAIN][:2], rtol=training.FIRST)


KEPT = {KERNELS: [1.0, 0.5, 0.25], PLAIN: [1.0, 0.5 + 1e-5, 0.25]}


@pytest.mark.parametrize(
    ("found", "right"),
    [
        ([1.0, 0.5, 0.25], True),
        ([1.0, 0.5, 0.25 * (1 + 9e-4)], True),
        ([1.0, 0.5, 0.25 * (1 + 1.1e-3)], False),
        ([1.0 + 2e-5, 0.5, 0.25], False),
        ([1.0, np.nan, 0.25], False),
        ([1.0, 0.5], True),
        ([], False),
    ],
)
def test_losses_are_right_near_those_of_the_cpu(found, right) -> None:
    assert training.compared(found, KEPT)["right"] is right


# What is timed runs alone: processes of other items stand still meanwhile.


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


# The wheels for a machine without a network.


def test_the_stub_installs_and_imports(tmp_path: Path) -> None:
    stub = wheels.write_stub(tmp_path)
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    more = ["--disable-pip-version-check", "--target", str(site), str(stub)]
    subprocess.run([*pip, *more], check=True)
    code = (
        "from torch_harmonics import RealSHT, InverseRealSHT\n"
        "from torch_harmonics.quadrature import clenshaw_curtiss_weights\n"
        f"import torch_harmonics as t; assert t.__file__.startswith({str(site)!r})"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(site)}
    )
