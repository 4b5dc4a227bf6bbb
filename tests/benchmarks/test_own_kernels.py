"""GPU kernels: their cases, and what limits them, from PTX and what ptxas says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks.accelerator import own_kernels, ptx
from benchmarks.accelerator.cases import cases
from benchmarks.accelerator.compile_cases import DEFINITION, KERNEL, function_name
from benchmarks.accelerator.limits import (
    Launch,
    Resources,
    launches,
    limits,
    programs_at_once,
    resources,
)
from benchmarks.accelerator.ptx import Work, parse
from benchmarks.accelerator.targets import TARGETS
from credit_jax import kernels
from tests.benchmarks.programs import LOG, METADATA, POWERS, PRODUCT, SEQUENCE

# An operation of `kernels.gpu` that is no case of its own, but part of
# `layer_norm_and_skip`.
WITHIN = {"layer_norm"}


def test_names_are_unique_and_operations_those_of_the_models() -> None:
    for size in ("025deg", "small"):
        names = [case.name for case in cases(size)]
        assert len(set(names)) == len(names)
    operations = {case.operation for case in cases("025deg")}
    assert operations == {case.operation for case in cases("small")}
    for operation in operations | WITHIN:
        assert callable(getattr(kernels, operation))


@pytest.mark.slow(but=["small"])
@pytest.mark.parametrize("size", ["025deg", "small"])
def test_kernels_have_the_types_of_their_definitions(size: Any) -> None:
    for case in cases(size):
        for dtype in case.dtypes:
            arrays = [jax.ShapeDtypeStruct(s, jnp.dtype(dtype)) for s in case.shapes]
            found, expected, compiled = (
                jax.eval_shape(case.with_gradients(function), *arrays)
                for function in (case.interpreted, case.definition, case.kernel)
            )
            assert found == expected == compiled, f"{case.name}, {dtype}"


# Instructions of kernels, counted in their PTX.


# In the loop of two turns: two loads of four values, eight powers and eight sums, five
# operations on addresses, and its increment, comparison and branch.
LOOP, TURNS = 2 + 8 + 8 + 5 + 3, 25


def test_a_loop_counts_as_often_as_it_runs() -> None:
    work = parse(POWERS).work((3, 0, 0))
    assert work.special == TURNS * 8 + 4, "and four roots"
    assert work.requested == 32 * 16 * (TURNS * 2 + 1), "16 bytes a thread"
    assert TURNS * LOOP < work.instructions < TURNS * LOOP + 45


def test_a_program_runs_its_branch_alone() -> None:
    kernel = parse(POWERS)
    roots, none = kernel.work((2, 0, 0)), kernel.work((1, 0, 0))
    assert roots.special - none.special == 4
    assert roots.instructions - none.instructions == 4 + 1, "roots, and a jump"


def test_operations_of_matrix_instructions() -> None:
    work = parse(PRODUCT).work((0, 0, 0))
    assert work.flops == 2 * 64 * 16 * 16 / 4, "a quarter of them for each of 4 warps"
    assert work.requested == 32 * (16 + 4 + 16 + 16)
    assert not parse(PRODUCT).is_pipelined


def test_what_depends_on_the_thread_is_not_known() -> None:
    guarded = POWERS.replace("mov.u32  %r1, %ctaid.x", "mov.u32  %r1, %tid.y")
    assert guarded != POWERS
    assert parse(guarded).work((1, 0, 0)).special == TURNS * 8 + 4, "not taken"


def test_copies_behind_the_last_turn_read_nothing() -> None:
    copy = "cp.async.cg.shared.global [ %r12 + 0 ], [ %rd5 + 0 ], 0x10, %r99;\n"
    loop = "$L__BB0_1:\n"
    for size, times in (("16", TURNS), ("0", 0)):
        text = POWERS.replace(loop, f"{loop} mov.b32 %r99, {size};\n {copy}")
        more = parse(text).work((0, 0, 0)).requested
        assert more - parse(POWERS).work((0, 0, 0)).requested == times * 32 * 16
        assert parse(text).is_pipelined


def test_a_program_without_an_end_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr(ptx, "_MOST", 100_000)
    endless = POWERS.replace("setp.ne.b32  %p1, %r36, 6400", "setp.ne.b32  %p1, 0, 1")
    with pytest.raises(ValueError, match="powers_0_flops: a program with no end"):
        parse(endless).work((0, 0, 0))


# What limits a kernel on a GPU.


H100, A100 = TARGETS["h100"], TARGETS["a100"]
assert H100.chip is not None
CHIP = H100.chip
SMALL = Resources(32, 0, 0)


def test_what_ptxas_says() -> None:
    assert resources(LOG) == {
        "window_attention_backward": Resources(255, 652, 408),
        "input_reduce_fusion": Resources(30, 0, 0, 8320),
    }
    with pytest.raises(ValueError, match="nothing of the registers of linear"):
        resources("ptxas info : Function properties for linear\n  0 bytes stack")


def test_launches_have_the_names_of_instructions() -> None:
    found = launches(SEQUENCE, METADATA)
    assert list(found) == ["loop_pad_fusion", "pallas_call.3"]
    attention = found["pallas_call.3"]
    assert attention == Launch("window_attention_backward", (66, 4, 1), 256, 98304)
    assert (attention.programs, attention.warps) == (264, 8)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "expected"),
    [
        (256, 255, 0, 1),  # 8 warps x 32 threads x 256 registers are all
        (256, 128, 0, 2),
        (256, 32, 0, 8),  # 2,048 threads
        (256, 32, 96 * 1024, 2),  # 228 KB, 1 of each program the system's
        (128, 168, 0, 3),
        (32, 16, 0, 32),
    ],
)
def test_programs_of_a_multiprocessor(
    threads: int, registers: int, shared: int, expected: int
) -> None:
    launch = Launch("kernel", (1000,), threads, shared)
    assert programs_at_once(launch, Resources(registers, 0, 0), CHIP) == expected


def _limits(
    work: Work,
    moved: float,
    *,
    programs: int = CHIP.count * 64,
    resources: Resources = SMALL,
    pipelined: bool = False,
) -> tuple[str, float]:
    launch = Launch("kernel", (programs,), 256, 0)
    found = limits(launch, resources, work, moved, H100, pipelined=pipelined)
    return found.bound, found.seconds


def test_the_resource_that_is_needed_longest_is_the_bound() -> None:
    warps = CHIP.count * 64 * 8
    assert _limits(Work(), 3.35e9) == ("memory", pytest.approx(1e-3))
    products = Work(flops=H100.peak * 1e-3 / warps)
    assert _limits(products, 1e9) == ("products", pytest.approx(1e-3))
    clocks = CHIP.count * CHIP.clock
    busy = Work(instructions=4 * clocks * 1e-3 / warps)
    assert _limits(busy, 1e9) == ("issue slots", pytest.approx(1e-3))
    powers = Work(instructions=1, special=16 / 32 * clocks * 1e-3 / warps)
    assert _limits(powers, 1e9) == ("special functions", pytest.approx(1e-3))
    reads = Work(requested=CHIP.cache_bandwidth * 1e-3 / warps)
    assert _limits(reads, 1e9) == ("L2", pytest.approx(1e-3))


def test_a_program_must_fit() -> None:
    launch = Launch("kernel", (1,), 256, 200 * 1024)
    assert limits(launch, SMALL, Work(), 1.0, H100, pipelined=False).at_once == 1
    with pytest.raises(ValueError, match="fits into no multiprocessor of a100"):
        limits(launch, SMALL, Work(), 1.0, A100, pipelined=False)


# The report of own kernels, from what XLA and ptxas wrote.


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
SEQUENCE_OWN_KERNELS = (
    "001: kCustomKernel [source | next=002 (1)] powers_0_flops grid: [4, 1, 1] "
    "threads: [32, 1, 1]  shared_memory: 512 bytes\n"
)
METADATA_OWN_KERNELS = (
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
        (folder / f"{dumped}.thunk_sequence.txt").write_text(SEQUENCE_OWN_KERNELS)
        (folder / f"{dumped}.thunk_metadata.txt").write_text(METADATA_OWN_KERNELS)
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
