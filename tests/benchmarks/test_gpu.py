"""The benchmark on a GPU: its parts, its processes and the values it compares with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.accelerator.kernels import kernels
from benchmarks.accelerator.program import parse
from benchmarks.accelerator.roofline import total
from benchmarks.accelerator.targets import TARGETS
from benchmarks.gpu import bounds, draws, models, records, training, wheels
from benchmarks.gpu.__main__ import PARTS
from benchmarks.gpu.models import KERNELS, PLAIN
from benchmarks.gpu.records import CRASHED, DONE, FAILED, RUNNING, STOPPED, Setting
from benchmarks.gpu.runner import ROOT, Job, Runner, any_left
from benchmarks.gpu.turns import alone
from benchmarks.speed.cases import make_case
from credit_jax.models.conversion import from_state_dict, to_state_dict
from tests.benchmarks.test_accelerator import STEP

H100 = TARGETS["h100"]
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
    "families": "| wxformer_moe |",
}


@pytest.mark.slow
@pytest.mark.reference
def test_every_part_runs_and_nothing_runs_twice(tmp_path: Path) -> None:
    out, archive = tmp_path / "out", tmp_path / "out" / "more" / "gpu.tar.gz"
    command = [sys.executable, "-m", "benchmarks.gpu", "--minutes", "60", "--rehearse"]
    command += ["--commit", "0123abc", "--out", str(out), "--archive", str(archive)]

    def rehearse() -> dict[Path, int]:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        items = (out / "items").rglob("*.json")
        return {path: path.stat().st_mtime_ns for path in items}

    first = rehearse()
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
    with tarfile.open(archive) as packed:
        names = packed.getnames()
    assert {"gpu.md", "gpu.json", "items", "logs"} <= set(names)
    assert not any(name.startswith(("cache", "scratch")) for name in names)
    assert rehearse() == first


def test_times_of_a_profile_beside_bounds_of_the_program() -> None:
    measured = {"cudnn-conv.23": 1e-4, "copy.1": 5e-6, "* memcpy": 3e-6}
    joined = bounds.joined(STEP, measured, H100)
    every = kernels(parse(STEP))
    assert joined["bound"] == pytest.approx(total(every, H100).step(H100.launch))
    assert joined["kernels"] == pytest.approx(1.08e-4)
    first = total(every[:1], H100).step(H100.launch)
    expected = {"kernels": 1, "seconds": 1e-4, "bound": first}
    assert joined["parts"]["embedding, forward"] == pytest.approx(expected)
    # What loses most comes first, what was not seen last.
    names = [row["name"] for row in joined["worst"]]
    assert names[:2] == ["cudnn-conv.23", "copy.1"]
    assert joined["rest"] == {"* memcpy": 3e-6}
    assert joined["rest seconds"] == 3e-6
    unseen = joined["not seen"]
    assert (unseen["number"], unseen["of"]) == (len(every) - 2, len(every))
    assert set(unseen["first"]) == {kernel.name for kernel in every} - {*measured}


def event(name: str, nanoseconds: float, *op: str) -> SimpleNamespace:
    stats = [("hlo_op", name) for name in op]
    return SimpleNamespace(name=name, duration_ns=nanoseconds, stats=stats)


def test_the_streams_of_a_gpu_count_alone(tmp_path: Path, monkeypatch) -> None:
    gemms = [event("gemm", 6e3, "dot.1"), event("gemm", 3e3, "dot.1")]
    lines = {
        ("/device:GPU:0", "Stream #1(Compute)"): [*gemms, event("Memcpy", 3e3)],
        ("/device:GPU:0", "XLA Ops"): [event("dot.1", 9e3, "dot.1")],
        ("/host:CPU", "thread"): [event("dot.1", 1e6, "dot.1")],
    }
    planes = [
        SimpleNamespace(name=plane, lines=[SimpleNamespace(name=line, events=events)])
        for (plane, line), events in lines.items()
    ]
    (tmp_path / "x.xplane.pb").touch()
    reader = SimpleNamespace(from_file=lambda path: SimpleNamespace(planes=planes))
    monkeypatch.setattr(bounds, "ProfileData", reader)
    seconds = bounds.seconds_by_instruction(tmp_path, steps=3)
    assert seconds == pytest.approx({"dot.1": 3e-6, "* Memcpy": 1e-6})


def test_bounds_are_of_the_measured_rates(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    assert bounds.target_of(setting) == H100
    result = {"copy": 3e12, "bfloat16, default": 7e14}
    records.write(tmp_path, "device", "ceilings", {"status": DONE, "result": result})
    target = bounds.target_of(setting)
    assert (target.bandwidth, target.peak) == (3e12, 7e14)


# Draws that are the same everywhere, and sketches that keep distances.


def test_draws_are_those_of_the_committed_values() -> None:
    """Other numbers would make `models.npz` and `training.json` wrong."""
    drawn = draws.uniform("input x", (4,))
    assert drawn.dtype == np.float32
    expected = [-1.4752376, -0.63788068, 0.6199926, -1.55740082]
    np.testing.assert_array_equal(drawn, np.array(expected, np.float32))


def test_a_drawn_state_has_no_constant_weights() -> None:
    model_def = make_case("tiny", "fuxi").model_def
    state = draws.drawn_state(model_def)
    back = to_state_dict(model_def, *from_state_dict(model_def, state))
    assert state.keys() == back.keys()
    for name, array in state.items():
        if array.dtype.kind == "f" and array.size > 8:
            assert np.unique(array).size > array.size / 2, name
        if name.endswith(("weight_u", "weight_v")):
            assert np.linalg.norm(array) == pytest.approx(1), name


def test_sketches_are_linear_and_keep_norms_and_distances(rng) -> None:
    a, b = rng.normal(size=(2, 40, 500))
    sketch = draws.sketch("name", a)
    assert sketch.shape == (draws.SUMS,)
    both = draws.sketch("name", a + 2 * b)
    np.testing.assert_allclose(both, sketch + 2 * draws.sketch("name", b))
    norms = [np.linalg.norm(draws.sketch(str(seed), a)) for seed in range(50)]
    assert abs(np.mean(np.square(norms)) / np.linalg.norm(a) ** 2 - 1) < 0.1
    assert np.array_equal(draws.sketch("name", np.arange(3)), [0, 1, 2])

    x, noise = rng.normal(size=(2, 300, 10))
    expected = {"a": draws.sketch("a", x), "b": rng.normal(size=7)}
    assert draws.distance(expected, expected) == 0
    near = {**expected, "a": draws.sketch("a", x + 1e-3 * noise)}
    assert 5e-4 < draws.distance(near, expected) < 2e-3
    broken = {**expected, "a": draws.sketch("a", x * np.nan)}
    for other in (broken, {"a": expected["a"]}, {**expected, "b": expected["b"][:3]}):
        assert draws.distance(other, expected) == np.inf


# The committed values of CREDIT: how they are made, and what is not right.


@pytest.mark.slow
@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("credit")
def test_the_committed_values_are_those_of_the_command(tmp_path: Path) -> None:
    from benchmarks.gpu.reference import main

    families = ("debugger", "fuxi")
    main(["models", "--families", *families, "--out", str(tmp_path)])
    for family in families:
        made = models.read_values(tmp_path / models.VALUES.name, family)
        committed = models.read_values(models.VALUES, family)
        assert made.keys() == committed.keys()
        for name, array in committed.items():
            assert made[name] == pytest.approx(array, rel=1e-3, abs=1e-5), name


def test_a_wrong_prediction_or_gradient_is_not_right() -> None:
    values = models.read_values(models.VALUES, "debugger")
    errors = models.distances("debugger", values, plain=True)
    assert errors["forward"] <= 1e-6 > errors["gradient"] / 10
    for name in models.TOLERANCES:
        key = next(key for key in values if key.startswith(name))
        wrong = {**values, key: values[key] * 1.01}
        again = models.distances("debugger", wrong, plain=True)
        assert again[name] > models.TOLERANCES[name]


@pytest.mark.slow
def test_the_committed_losses_are_those_of_the_demo_as_it_is() -> None:
    committed = json.loads(training.LOSSES.read_text())["losses"][training.DEMO]
    first = training.losses(training.DEMO, training.PLAIN, 2)
    expected = committed[training.PLAIN][:2]
    np.testing.assert_allclose(first, expected, rtol=training.FIRST)


@pytest.mark.parametrize(
    ("losses", "right"),
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
def test_losses_are_right_near_those_of_the_cpu(losses, right) -> None:
    cpu = {KERNELS: [1.0, 0.5, 0.25], PLAIN: [1.0, 0.5 + 1e-5, 0.25]}
    assert training.compared(losses, cpu)["right"] is right


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

part = types.ModuleType("benchmarks.gpu.fake")
part.run = run
sys.modules["benchmarks.gpu.fake"] = part
sys.exit(child.main(*sys.argv[1:]))
"""


@pytest.mark.slow(but=["fails"])
@pytest.mark.parametrize(
    ("item", "status", "error"),
    [
        ("fails", FAILED, "MemoryError: RESOURCE_EXHAUSTED"),
        ("crashes", CRASHED, "the process ended with code -9"),
        ("hangs", STOPPED, "stopped after 10 s"),
    ],
    ids=["fails", "crashes", "hangs"],
)
def test_an_item_that_ends_its_process_costs_no_other(
    item, status, error, tmp_path: Path
) -> None:
    script, told = tmp_path / "child.py", []
    script.write_text(CHILD)
    setting = Setting(tmp_path / "out", size="demo")
    report: Any = lambda part, item, record: told.append((item, record["status"]))  # noqa: E731
    runner = Runner(setting, time.monotonic() + 60, report, child=[str(script)])
    seconds = 10 if item == "hangs" else 30
    runner.side_by_side([Job("fake", ("a", item, "b c, d"), seconds)], 50)
    assert told == [("a", DONE), (item, status), ("b c, d", DONE)]
    done, ended = (records.read(setting.out, "fake", name) for name in ("b c, d", item))
    assert done["result"] == {"item": "b c, d", "size": "demo"}
    assert ended["result"]["begun"] == item
    assert ended["error"].startswith(error)
    if item == "hangs":
        assert "at hangs" in ended["error"]
        assert reaches(ended["result"]["sleeper"], "Z"), "and what it started is ended"


def reaches(pid: int, states: str) -> bool:
    """Whether a process gets into one of the kernel's states; Z also if it is gone."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except FileNotFoundError:
            return "Z" in states
        if text.rsplit(")", 1)[1].split()[0] in states:
            return True
        time.sleep(0.01)
    return False


def test_what_is_wrong_is_run_again_by_the_next_call(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    for item, right in (("a", True), ("b", False)):
        record = {"status": DONE, "result": {"right": right}}
        records.write(tmp_path, "fake", item, record)
    assert any_left(setting, "fake", ["a", "b"]) == []
    assert any_left(setting, "fake", ["a", "b"], wrong=True) == ["b"]


def test_others_stand_still_while_one_is_timed(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        for item, status, process in (
            ("itself", RUNNING, os.getpid()),
            ("other", RUNNING, other.pid),
            ("ended", DONE, other.pid),
            ("gone", RUNNING, 2**22 - 1),
        ):
            record = {"status": status, "process": process}
            records.write(tmp_path, "part", item, record)
        with alone(Setting(tmp_path)):
            assert reaches(other.pid, "T")
        assert reaches(other.pid, "SR")
    finally:
        other.kill()
        other.wait()


def test_the_stub_for_a_machine_without_a_network_installs(tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    pip += ["--disable-pip-version-check", "--target", str(site)]
    subprocess.run([*pip, str(wheels.write_stub(tmp_path))], check=True)
    code = (
        "from torch_harmonics import RealSHT, InverseRealSHT\n"
        "from torch_harmonics.quadrature import clenshaw_curtiss_weights\n"
        f"import torch_harmonics as t; assert t.__file__.startswith({str(site)!r})"
    )
    python = [sys.executable, "-c", code]
    subprocess.run(python, check=True, env={"PYTHONPATH": str(site)})
