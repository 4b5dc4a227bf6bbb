"""Accounts of programs that are compiled for accelerators: kernels, bytes, times."""

from __future__ import annotations

import json
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from benchmarks.accelerator.__main__ import main
from benchmarks.accelerator.account import GROWTH
from benchmarks.accelerator.compile_step import ACCOUNT, TEXT, Job
from benchmarks.accelerator.float8 import float8_of, float8_problems, traced_products
from benchmarks.accelerator.kernels import (
    AGAIN,
    BACKWARD,
    FORWARD,
    OTHER,
    kernels,
    part_of,
    phase_of,
)
from benchmarks.accelerator.operations import operations
from benchmarks.accelerator.overlap import summary, transfers
from benchmarks.accelerator.program import Shape, parse, shapes_of
from benchmarks.accelerator.roofline import Work, total, work_by
from benchmarks.accelerator.targets import TARGETS
from benchmarks.compiled_step import SMALL_MODEL, trace_step
from benchmarks.scale.comm_volume import SUMS
from credit_jax.models.flops import count_flops, flops_of
from credit_jax.ops.dense import float8_dense
from credit_jax.parallel.compiler import PARTS
from credit_jax.parallel.rows.exchange import HALO
from tests.benchmarks.programs import EXCERPT


def test_instructions_in_the_order_of_their_schedule():
    program = parse(EXCERPT)
    assert list(program.computations) == ["fused_slice", "fused_update", "body", "main"]
    entry = program.computations[program.entry]
    opcodes = [i.opcode for i in entry.values() if i.opcode != "parameter"]
    assert opcodes == [
        "custom-call",
        "custom-call",
        "while",
        "collective-permute",
        "custom-call",
    ]
    loop = entry["while.444"]
    assert (loop.called, loop.trips, loop.operands) == ("body", 5, ("p3",))
    convolution = entry["cudnn-conv.23"]
    assert convolution.operands == ("p0", "p1")
    assert convolution.op_name == "jit(step)/jvp(embedding)/conv_general_dilated"
    assert entry["p3"].shapes[2] == Shape("bf16", (5, 512, 32))
    assert entry["cudnn-conv-bw-filter.22"].is_root


def test_a_loop_of_unknown_length_is_an_error():
    text = EXCERPT.replace("known_trip_count", "something")
    loop = parse(text).computations["main"]["while.444"]
    with pytest.raises(ValueError, match="unknown length"):
        _ = loop.trips


def test_text_that_is_no_program():
    with pytest.raises(ValueError, match="no ENTRY"):
        parse("module @jit_step {}")


def test_layouts_of_a_tpu():
    shapes = shapes_of("(f32[8,128]{1,0:T(8,128)S(1)}, bf16[4,16]{1,0:T(8,128)(2,1)})")
    assert [s.size for s in shapes] == [4096, 128]
    assert [s.bytes for s in shapes] == [0, 128]


# Kernels: their parts, bytes and times.


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


# Operations of products and convolutions, compiled against traced.


def _counted(text):
    program = parse(text)
    return sum(
        operations(program, where, instruction)
        for name, where in program.computations.items()
        for instruction in where.values()
        if instruction.opcode != "fusion"
    )


def test_a_convolution_of_a_library_and_its_gradients():
    program = parse(EXCERPT)
    entry = program.computations["main"]
    forward = 2 * 32 * 32 * 6 * 4 * 4 * 6
    for name in ("cudnn-conv.23", "cudnn-conv-bw-input.20", "cudnn-conv-bw-filter.22"):
        assert operations(program, entry, entry[name]) == forward, name


def test_a_product_of_a_library():
    program = parse(EXCERPT)
    body = program.computations["body"]
    assert operations(program, body, body["custom-call.15"]) == 2 * 512 * 32 * 32


def _product(a, b):
    return lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,))))


def _convolution(x, kernel):
    return lax.conv_general_dilated(
        x, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (_product, [(3, 5, 7), (3, 7, 11)]),
        (_convolution, [(2, 13, 15, 4), (3, 5, 4, 6)]),
        (
            jax.grad(lambda x, k: _convolution(x, k).sum(), 1),
            [(1, 9, 9, 4), (3, 3, 4, 6)],
        ),
    ],
)
def test_as_many_as_the_traced_function(function, shapes):
    arrays = [jnp.ones(shape) for shape in shapes]
    text = jax.jit(function).lower(*arrays).compile().as_text()
    assert _counted(text) == count_flops(function, *arrays)


def test_taps_on_padding_are_no_operations():
    text = """
ENTRY %main (x: f32[1,4,1], k: f32[3,1,1]) -> f32[1,4,1] {
  %x = f32[1,4,1]{2,1,0} parameter(0)
  %k = f32[3,1,1]{2,1,0} parameter(1)
  ROOT %c = f32[1,4,1]{2,1,0} convolution(%x, %k), window={size=3 pad=1_1}, \
dim_labels=b0f_0io->b0f
}
"""
    assert _counted(text) == 2 * (4 * 3 - 2)


# Collectives and the kernels that overlap with them.


H100_OVERLAP = TARGETS["h100"]
SUMMED = 2 * 512 * 32


def test_kernels_between_start_and_end():
    found = transfers(parse(EXCERPT), {"domain": 2}, H100_OVERLAP)
    halo, total = sorted(found, key=lambda t: t.collective.kind, reverse=True)
    assert (halo.purpose, halo.kernels) == (HALO, 0)
    assert (total.purpose, total.kernels, total.collective.times) == (SUMS, 1, 5)


def test_what_waits_is_what_no_kernel_hides():
    rows = summary(transfers(parse(EXCERPT), {"domain": 2}, H100_OVERLAP), H100_OVERLAP)
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
    rows = summary(transfers(parse(text), {"domain": 2}, H100_OVERLAP), H100_OVERLAP)
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
    (halo,) = transfers(program, {"domain": 2}, H100_OVERLAP)
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
    (sent,) = transfers(program, {"dp": 8}, H100_OVERLAP)
    assert sent.collective.kind == "reduce-scatter"
    assert sent.collective.sent == 7 / 8 * 4 * 16 * 64


# Float8 products counted in traces and in compiled programs.


PROGRAM = """HloModule step, is_scheduled=true

%gemm (a: f8e4m3fn[8,16], b: f8e4m3fn[16,32]) -> f32[8,32] {
  %a = f8e4m3fn[8,16]{1,0} parameter(0)
  %b = f8e4m3fn[16,32]{1,0} parameter(1)
  ROOT %dot.1 = f32[8,32]{1,0} dot(%a, %b), lhs_contracting_dims={1}
}

ENTRY %main (p0: f32[8,16], p1: f8e4m3fn[16,32]) -> f32[8,32] {
  %p0 = f32[8,16]{1,0} parameter(0)
  %p1 = f8e4m3fn[16,32]{1,0} parameter(1)
  %convert.1 = f8e4m3fn[8,16]{1,0} convert(%p0)
  ROOT %fusion.1 = f32[8,32]{1,0} fusion(%convert.1, %p1), kind=kCustom, calls=%gemm
}
"""


def test_products_of_a_program() -> None:
    found = float8_of(parse(PROGRAM))
    assert found == {"products": 1, "mixed": 0, "widened": 0}
    account = {"float8": 16, "float8_traced": 1, "float8_products": found}
    assert float8_problems(account) == []
    assert float8_problems({}) == []


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("%a = f8e4m3fn", "%a = bf16", {"products": 0, "mixed": 1, "widened": 0}),
        (
            "f8e4m3fn[8,16]{1,0} convert(%p0)",
            "f32[16,32]{1,0} convert(%p1)",
            {"products": 1, "mixed": 0, "widened": 1},
        ),
    ],
)
def test_what_is_not_meant(old: str, new: str, found: dict[str, int]) -> None:
    assert float8_of(parse(PROGRAM.replace(old, new))) == found
    account = {"float8": 16, "float8_traced": 1, "float8_products": found}
    assert any("float8" in line for line in float8_problems(account))


def test_products_of_a_trace() -> None:
    """Float8 in the forward pass and the gradient of x, not in that of the weights."""

    def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return float8_dense(x, kernel).sum()

    x, kernel = jnp.ones((8, 16)), jnp.ones((16, 32))
    program = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(x, kernel)
    assert traced_products(program) == 2

    def body(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
        return float8_dense(carry, kernel[:, :16]), None

    looped = jax.make_jaxpr(lambda x: jax.lax.scan(body, x, length=3))(x)
    assert traced_products(looped) == 1, "one within a loop counts once"


# The report of compiled programs, and the comparison with an older one.


FOUND = {
    "memory": {"arguments": 1, "temporary": 2, "peak": 3},
    "compile_seconds": 1.0,
    "estimate_seconds": None,
    "traced": 4e6,
    "useful": 4e6,
}


@pytest.fixture
def run(tmp_path):
    """Runs the benchmark on a program that was compiled before."""
    for mesh in ("1", "domain2"):
        folder = Job("h100", "small", mesh, "none").folder(tmp_path)
        folder.mkdir(parents=True)
        (folder / TEXT).write_text(EXCERPT)
        (folder / ACCOUNT).write_text(json.dumps(FOUND))

    def run(*options):
        folders = ["--programs", str(tmp_path), "--out", str(tmp_path / "out")]
        always = ["--config", "small", "--remat", "none", "--reuse", *folders]
        meshes = ["--parallelism", "domain2"]
        status = main([*always, *meshes, *options])
        report = tmp_path / "out" / "accelerator_small.json"
        return status, json.loads(report.read_text()), report

    return run


def test_an_account(run):
    status, report, path = run()
    (program,) = report["programs"]
    assert status == 0
    assert program["kernels"] == 18
    assert sum(part["kernels"] for part in program["parts"].values()) == 18
    assert program["useful_flops"] == 2e6, "a sample is shared by two devices"
    assert program["exposed_seconds"] > 0
    assert list(program["steps"]) == ["1", "2", "5"]
    one, two, five = program["steps"].values()
    assert five - two == pytest.approx(3 * (two - one)) == pytest.approx(3 * 18e-6)
    text = path.with_suffix(".md").read_text()
    assert "| domain2, remat none | 18 |" in text
    assert "collective-permute | halo" in text


def test_a_program_that_grew_fails(run, tmp_path, capsys):
    _, report, _ = run()
    older = tmp_path / "older.json"
    (program,) = report["programs"]
    assert run("--against", _written(older, report))[0] == 0
    program["bytes"] = int(program["bytes"] / (1 + GROWTH) ** 2)
    assert run("--against", _written(older, report))[0] == 1
    printed = capsys.readouterr().err
    assert "bytes grew from" in printed
    assert "kernels grew" not in printed
    assert "of the same jaxlib" not in printed
    report["recipe"]["versions"]["jaxlib"] = "0.1.2"
    assert run("--against", _written(older, report))[0] == 1
    assert "is of jaxlib 0.1.2, this one of" in capsys.readouterr().err
    program["title"] = "domain2, remat full"
    assert run("--against", _written(older, report))[0] == 1
    expected = "domain2, remat none: the older report has no such program to compare"
    assert expected in capsys.readouterr().err


def _written(path, report):
    path.write_text(json.dumps(report))
    return str(path)


# CREDIT's eager step, counted on meta tensors.


@pytest.fixture(scope="module")
def kernels_of_torch_eager(credit):
    from benchmarks.accelerator.torch_eager import eager_step

    return eager_step(SMALL_MODEL)


@pytest.mark.slow
def test_operations_are_those_of_our_step(kernels_of_torch_eager):
    _, traced = trace_step(SMALL_MODEL, "1", batch=1)
    ours = flops_of(traced.jaxpr)
    theirs = sum(kernel.flops for kernel in kernels_of_torch_eager)
    print(f"CREDIT {theirs:.4g}, ours {ours:.4g}")
    assert theirs == pytest.approx(ours, rel=0.03)


def test_autocast_halves_products_and_keeps_sums(credit):
    import torch

    from benchmarks.accelerator.torch_eager import _Autocast

    weight = torch.ones(3, 3, requires_grad=True)
    with _Autocast():
        product = torch.ones(2, 3) @ weight
        assert product.dtype == torch.bfloat16
        assert torch.softmax(product, -1).dtype == torch.float32
        assert (product * product).dtype == torch.bfloat16
        assert product.pow(2).dtype == torch.float32
        assert torch.dot(torch.ones(2), product[:, 0]).dtype == torch.float32


def _num_parameters():
    from credit_jax.models.registry import build

    return build(SMALL_MODEL).num_parameters
