"""The profile of a step joined with its program."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.accelerator.cases import cases
from benchmarks.accelerator.targets import TARGETS
from benchmarks.gpu import bounds, kernels, records
from benchmarks.gpu.bounds import joined
from benchmarks.gpu.records import Setting

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


def test_the_tables_say_what_is_near_its_bound() -> None:
    measured = dict.fromkeys(("loop_fusion.2", "loop_fusion.3"), 1.2 * BOUND)
    measured |= {"loop_fusion.1": 2 * BOUND}
    found = joined(PROGRAM, measured, H100) | {"step": 1e-4}
    intro, _, parts, _, kernels = bounds.tables({bounds.STEP: found})
    assert "1 of 2 parts are within 25% of their bound" in intro
    assert [row[0] for row in parts.rows] == ["attention, forward", "norm, forward"]
    assert [row[-1] for row in parts.rows] == ["2.00", "1.20"]
    assert kernels.rows[0][0] == "loop fusion: neg (loop_fusion.1)"


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


def test_every_operation_with_a_kernel_is_timed(tmp_path: Path) -> None:
    step, *operations = bounds.items(Setting(tmp_path))
    assert step == bounds.STEP
    assert len(set(operations)) == len(operations)
    found = [kernels.case_of(item, Setting(tmp_path)) for item in operations]
    expected = [(c.name, dtype) for c in cases("025deg") for dtype in c.dtypes]
    assert sorted((c.name, dtype) for c, dtype in found) == sorted(expected)
    assert found[0][1] == "bfloat16"
