"""Instructions of kernels, counted in their PTX."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.accelerator import ptx
from benchmarks.accelerator.ptx import entry, parse
from tests.benchmarks.accelerator.machine_code import POWERS, PRODUCT

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


def test_a_text_without_a_kernel() -> None:
    assert entry("// nothing") is None
    assert entry(POWERS) == "powers_0_flops"
    with pytest.raises(ValueError, match=r"no \.entry"):
        parse("// nothing")
