"""Collectives and the kernels that overlap with them."""

import pytest

from benchmarks.accelerator.kernels import kernels
from benchmarks.accelerator.overlap import summary, transfers
from benchmarks.accelerator.program import parse
from benchmarks.accelerator.targets import TARGETS
from benchmarks.scale.comm_volume import SUMS
from credit_jax.parallel.rows.reshard import HALO
from tests.benchmarks.accelerator.excerpt import EXCERPT

H100 = TARGETS["h100"]
SUMMED = 2 * 512 * 32


def test_kernels_between_start_and_end():
    found = transfers(parse(EXCERPT), {"domain": 2}, H100)
    halo, total = sorted(found, key=lambda t: t.collective.kind, reverse=True)
    assert (halo.purpose, halo.kernels) == (HALO, 0)
    assert (total.purpose, total.kernels, total.collective.times) == (SUMS, 1, 5)


def test_what_waits_is_what_no_kernel_hides():
    rows = summary(transfers(parse(EXCERPT), {"domain": 2}, H100), H100)
    summed, halo = (next(r for r in rows if r["purpose"] == p) for p in (SUMS, HALO))
    assert (summed["number"], summed["bytes"]) == (5, 5 * SUMMED)
    assert summed["seconds"] == pytest.approx(5 * (10e-6 + SUMMED / 450e9))
    assert 0 < summed["exposed_seconds"] < summed["seconds"]
    assert (summed["nothing_beside"], summed["median_kernels_beside"]) == (0, 1)
    assert halo["exposed_seconds"] == halo["seconds"]
    assert halo["nothing_beside"] == 1


def test_a_collective_that_blocks_hides_nothing():
    sync = 'backend_config={"collective_backend_config":{"is_sync":true}}, '
    text = EXCERPT.replace("to_apply=%add, ", "to_apply=%add, " + sync)
    rows = summary(transfers(parse(text), {"domain": 2}, H100), H100)
    assert all(row["exposed_seconds"] == row["seconds"] for row in rows)


# The halos of both directions in one launch, and a kernel that overlaps with them.
GROUPED = """\
HloModule jit_step, is_scheduled=true

%permuted.collectives_group (a.1: bf16[1,3,64], b.1: bf16[1,2,64]) -> \
(bf16[1,3,64], bf16[1,2,64]) {
  %a.1 = bf16[1,3,64]{2,1,0} parameter(0)
  %b.1 = bf16[1,2,64]{2,1,0} parameter(1)
  %collective-permute-start.1 = (bf16[1,3,64]{2,1,0}, bf16[1,3,64]{2,1,0}) \
collective-permute-start(%a.1), source_target_pairs={{0,1}}, \
metadata={op_name="ppermute"}
  %collective-permute-done.1 = bf16[1,3,64]{2,1,0} \
collective-permute-done(%collective-permute-start.1)
  %collective-permute-start.2 = (bf16[1,2,64]{2,1,0}, bf16[1,2,64]{2,1,0}) \
collective-permute-start(%b.1), source_target_pairs={{1,0}}, \
metadata={op_name="ppermute"}
  %collective-permute-done.2 = bf16[1,2,64]{2,1,0} \
collective-permute-done(%collective-permute-start.2)
  ROOT %tuple.1 = (bf16[1,3,64]{2,1,0}, bf16[1,2,64]{2,1,0}) tuple(\
%collective-permute-done.1, %collective-permute-done.2)
}

ENTRY %main (a: bf16[1,3,64], b: bf16[1,2,64]) -> bf16[1,3,64] {
  %a = bf16[1,3,64]{2,1,0} parameter(0)
  %b = bf16[1,2,64]{2,1,0} parameter(1)
  %tuple-start = ((bf16[1,3,64]{2,1,0}, bf16[1,2,64]{2,1,0}), \
(bf16[1,3,64]{2,1,0}, bf16[1,2,64]{2,1,0})) async-start(%a, %b), \
calls=%permuted.collectives_group, frontend_attributes={_collectives_group=""}
  %copy.1 = bf16[1,3,64]{2,1,0} copy(%a)
  %tuple-done = (bf16[1,3,64]{2,1,0}, bf16[1,2,64]{2,1,0}) async-done(%tuple-start), \
metadata={op_name="jit(step)/jvp(embedding)/halo/jit(permuted)"}
  ROOT %get-tuple-element.1 = bf16[1,3,64]{2,1,0} get-tuple-element(%tuple-done), \
index=0
}
"""


def test_collectives_in_one_launch_are_one_message():
    program = parse(GROUPED)
    (halo,) = transfers(program, {"domain": 2}, H100)
    assert (halo.purpose, halo.kernels) == (HALO, 1)
    assert halo.collective.sent == (3 + 2) * 64 * 2
    assert [kernel.name for kernel in kernels(program)] == ["copy.1"]


# What XLA writes of a scatter of gradients beside other work.
STARTED = """\
HloModule jit_step, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%started (param: f32[16,64]) -> f32[2,64] {
  %param = f32[16,64]{1,0} parameter(0)
  ROOT %reduce-scatter.1 = f32[2,64]{1,0} reduce-scatter(%param), \
replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, to_apply=%add, \
metadata={op_name="parameters/reduce_scatter"}
}

ENTRY %main (x: f32[16,64]) -> f32[2,64] {
  %x = f32[16,64]{1,0} parameter(0)
  %reduce-scatter-start.1 = ((f32[16,64]{1,0}), f32[2,64]{1,0}) \
async-start(%x), calls=%started
  ROOT %reduce-scatter-done.1 = f32[2,64]{1,0} async-done(%reduce-scatter-start.1)
}
"""


def test_a_collective_in_a_computation_that_is_started_is_no_kernel():
    program = parse(STARTED)
    assert kernels(program) == []
    (sent,) = transfers(program, {"dp": 8}, H100)
    assert sent.collective.kind == "reduce-scatter"
    assert sent.collective.sent == 7 / 8 * 4 * 16 * 64
