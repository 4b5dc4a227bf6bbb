"""Kernels: their parts, bytes and times."""

import re

import pytest

from benchmarks.accelerator.kernels import (
    AGAIN,
    BACKWARD,
    FORWARD,
    OTHER,
    kernels,
    part_of,
    phase_of,
)
from benchmarks.accelerator.program import parse
from benchmarks.accelerator.roofline import Work, total, work_by
from benchmarks.accelerator.targets import TARGETS
from benchmarks.compiled_step import SMALL_MODEL, trace_step
from credit_jax.parallel.scopes import PARTS
from tests.benchmarks.accelerator.excerpt import EXCERPT

H100 = TARGETS["h100"]
ROW = 512 * 32  # of what the loop slices and updates


@pytest.fixture(scope="module")
def found():
    return {kernel.name: kernel for kernel in kernels(parse(EXCERPT))}


def test_collectives_and_loops_are_no_kernels(found):
    assert set(found) == {
        "cudnn-conv.23",
        "cudnn-conv-bw-input.20",
        "cudnn-conv-bw-filter.22",
        "custom-call.15",
        "loop_dynamic_slice_fusion",
        "loop_dynamic_update_slice_fusion",
    }
    assert found["custom-call.15"].times == 5
    assert found["cudnn-conv.23"].times == 1


def test_bytes_of_slices_and_updates_in_place(found):
    assert found["loop_dynamic_slice_fusion"].bytes == 2 * 2 * ROW + 4
    assert found["loop_dynamic_update_slice_fusion"].bytes == 2 * 4 * ROW + 4


def test_the_workspace_of_a_library_is_not_moved(found):
    assert found["custom-call.15"].bytes == 2 * 2 * ROW + 4 * ROW


def test_part_and_phase(found):
    assert found["cudnn-conv.23"].part == "embedding"
    assert found["cudnn-conv.23"].phase == FORWARD
    assert found["cudnn-conv-bw-filter.22"].phase == BACKWARD
    assert found["custom-call.15"].part == "norm", "the innermost scope counts"
    assert found["custom-call.15"].phase == AGAIN
    # XLA gave the fusion no name: the name of an instruction in it is taken.
    assert found["loop_dynamic_slice_fusion"].part == "blocks"
    assert found["loop_dynamic_slice_fusion"].phase == BACKWARD
    assert part_of("jit(step)/mul") == OTHER
    assert part_of("jit(step)/jvp(blocks)/windows/ppermute") == "attention"
    assert part_of("jit(step)/jvp(spectral_norm)/mul") == "spectral_norm"
    assert phase_of("jit(step)/jvp(loss)/sub") == FORWARD


def test_roofline(found):
    kernel = found["cudnn-conv.23"]
    work = Work().plus(kernel, H100)
    assert work.seconds == max(kernel.bytes / 3.35e12, kernel.flops / 989e12)
    assert work.step(5e-6) == work.seconds + 5e-6
    every = total(found.values(), H100)
    assert every.kernels == 3 + 3 * 5
    parts = work_by(lambda k: k.part, found.values(), H100)
    assert sum(part.bytes for part in parts.values()) == every.bytes
    assert parts["norm"].kernels == 5


@pytest.mark.slow
def test_every_part_of_a_step_has_its_scope():
    _, traced = trace_step(SMALL_MODEL, "1", batch=1, precision="bfloat16")
    names = re.findall(r'loc\("([^"]*)"', traced.lower().as_text(debug_info=True))
    parts = {part_of(name) for name in names}
    missing = set(PARTS) - parts
    assert not missing, f"nothing in the step is in the scopes {missing}"
