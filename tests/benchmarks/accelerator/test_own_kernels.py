"""The report of own kernels, from what XLA and ptxas wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accelerator import own_kernels
from benchmarks.accelerator.cases import cases
from benchmarks.accelerator.compile_cases import DEFINITION, KERNEL, function_name
from benchmarks.accelerator.limits import Resources
from tests.benchmarks.accelerator.machine_code import POWERS

CASE, DTYPE = cases("025deg")[0].name, "bfloat16"
HLO = """\
HloModule jit_case, is_scheduled=true

ENTRY %main (p0: f32[200,128]) -> f32[4,128] {
  %p0 = f32[200,128]{1,0} parameter(0)
  %pallas_call.1 = f32[4,128]{1,0} custom-call(%p0), \
custom_call_target="__gpu$xla.gpu.triton", \
metadata={op_name="jit(case)/powers_0_flops/pallas_call"}
  ROOT %copy.1 = f32[4,128]{1,0} copy(%pallas_call.1)
}
"""
SEQUENCE = (
    "001: kCustomKernel [source | next=002 (1)] powers_0_flops grid: [4, 1, 1] "
    "threads: [32, 1, 1]  shared_memory: 512 bytes\n"
)
METADATA = (
    'thunk_metadata { thunk_info { profile_annotation: "pallas_call.1" thunk_id: 1 } }'
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs the report on one case that was compiled before."""
    for side in (KERNEL, DEFINITION):
        name = function_name(CASE, DTYPE, side)
        folder = tmp_path / "h100" / side
        folder.mkdir(parents=True)
        (folder / f"{name}.hlo").write_text(HLO)
        dumped = f"module_0001.jit_{name}"
        (folder / f"{dumped}.thunk_sequence.txt").write_text(SEQUENCE)
        (folder / f"{dumped}.thunk_metadata.txt").write_text(METADATA)
        (folder / f"{dumped}.1.ptx").write_text(POWERS)
        (folder / f"{dumped}.2.ptx").write_text("")
    spilled = {"stores": 0}

    def assembled(path: Path, target: Any) -> dict[str, Resources]:
        return {"powers_0_flops": Resources(58, spilled["stores"], 0)}

    monkeypatch.setattr(own_kernels, "_assembled", assembled)
    monkeypatch.setattr(own_kernels, "AHEAD", 1.5)

    def run(*options: str, stores: int = 0) -> tuple[int, Any]:
        spilled["stores"] = stores
        folders = ["--programs", str(tmp_path), "--out", str(tmp_path)]
        status = own_kernels.main(["--reuse", "--cases", CASE, *folders, *options])
        return status, json.loads((tmp_path / "own_kernels-h100.json").read_text())

    return run


def test_the_account_of_a_kernel(run: Any, tmp_path: Path) -> None:
    status, report = run()
    assert status == 0
    (case,) = report["cases"]
    (kernel,) = case["kernels"]
    assert kernel["kernel"] == "powers_0_flops"
    assert (kernel["registers"], kernel["shared"], kernel["programs"]) == (58, 512, 4)
    assert kernel["bytes"] == 4 * (200 + 4) * 128
    # The copy is the same in both programs; the definition's kernel is perfect.
    assert case["seconds"] > case["definition_seconds"] > 2 * 2e-6
    text = (tmp_path / "own_kernels-h100.md").read_text()
    assert f"| powers: {CASE}, {DTYPE} | 58 | 0 |" in text
    assert "issue slots, ms" in text


def test_new_spills_fail(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = tmp_path / "older.json"
    older.write_text(json.dumps(run(stores=8)[1]))
    assert run("--against", str(older), stores=8)[0] == 0
    assert run("--against", str(older), stores=12)[0] == 1
    assert "powers_0_flops spills 12 bytes a thread, and 8" in capsys.readouterr().err
    assert run(stores=12)[0] == 0, "without an older report spills are told only"


def test_a_kernel_that_gains_too_little_fails(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(own_kernels, "AHEAD", 0.9)
    assert run()[0] == 1
    assert "times as long as XLA's program, at most 0.9" in capsys.readouterr().err
    assert run("--no-definitions")[0] == 0
