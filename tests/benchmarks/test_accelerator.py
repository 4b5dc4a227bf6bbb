"""Accounts of programs that are compiled for accelerators: kernels, bytes, times."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from benchmarks.accelerator import own_kernels, ptx
from benchmarks.accelerator.__main__ import main
from benchmarks.accelerator.account import GROWTH
from benchmarks.accelerator.cases import cases
from benchmarks.accelerator.compile_cases import DEFINITION, KERNEL, function_name
from benchmarks.accelerator.compile_step import ACCOUNT, TEXT, Job
from benchmarks.accelerator.float8 import float8_of, float8_problems, traced_products
from benchmarks.accelerator.kernels import (
    AGAIN,
    BACKWARD,
    FORWARD,
    OTHER,
    kernels,
    part_of,
)
from benchmarks.accelerator.limits import (
    Launch,
    Resources,
    launches,
    limits,
    programs_at_once,
    resources,
)
from benchmarks.accelerator.operations import operations
from benchmarks.accelerator.overlap import summary, transfers
from benchmarks.accelerator.program import parse, shapes_of
from benchmarks.accelerator.roofline import total, work_by
from benchmarks.accelerator.targets import TARGETS
from benchmarks.compiled_step import SMALL_MODEL, trace_step
from benchmarks.scale.comm_volume import SUMS
from credit_jax import kernels as library_kernels
from credit_jax.models.flops import count_flops, flops_of
from credit_jax.ops.dense import float8_dense
from credit_jax.parallel.compiler import PARTS
from credit_jax.parallel.rows.exchange import HALO

# Programs as XLA compiles them for the H100, PTX of small kernels, and what it prints.
PROGRAMS = {
    path.name: path.read_text() for path in Path(__file__).parent.glob("programs/*")
}
STEP, FLOAT8 = PROGRAMS["step.hlo"], PROGRAMS["float8.hlo"]
POWERS, PRODUCT = PROGRAMS["powers.ptx"], PROGRAMS["product.ptx"]
H100, A100 = TARGETS["h100"], TARGETS["a100"]
assert H100.chip is not None
CHIP = H100.chip
MESH = {"domain": 2}

# Each kernel of STEP: part, phase, runs, bytes, operations. Workspaces of a library are
# not moved, slices and updates in place move their rows, the innermost scope counts.
ROW = 512 * 32
CONVOLUTION = (
    2 * (64 * 64 * 6 + 6 * 4 * 4 * 6 + 32 * 32 * 6),
    2 * 32 * 32 * 6 * 4**2 * 6,
)
KERNELS = {
    "cudnn-conv.23": ("embedding", FORWARD, 1, *CONVOLUTION),
    "cudnn-conv-bw-input.20": ("embedding", BACKWARD, 1, *CONVOLUTION),
    "loop_dynamic_slice_fusion": ("blocks", BACKWARD, 5, 2 * 2 * ROW + 4, 0),
    "custom-call.15": ("norm", AGAIN, 5, (2 * 2 + 4) * ROW, 2 * ROW * 32),
    "loop_dynamic_update_slice_fusion": ("blocks", FORWARD, 5, 2 * 4 * ROW + 4, 0),
    "copy.1": (OTHER, FORWARD, 1, 2 * 2 * 3 * 64, 0),
    "cudnn-conv-bw-filter.22": ("embedding", BACKWARD, 1, *CONVOLUTION),
}
LAUNCHES = 4 + 3 * 5


def test_every_kernel_of_a_program_and_its_roofline() -> None:
    every = kernels(parse(STEP))
    assert {
        k.name: (k.part, k.phase, k.times, k.bytes, k.flops) for k in every
    } == KERNELS
    work, parts = total(every, H100), work_by(lambda k: k.part, every, H100)
    assert work.kernels == LAUNCHES
    assert work.seconds == pytest.approx(
        sum(k.times * max(k.bytes / 3.35e12, k.flops / 989e12) for k in every)
    )
    assert work.step(5e-6) == work.seconds + LAUNCHES * 5e-6
    assert sum(part.bytes for part in parts.values()) == work.bytes
    assert parts["norm"].kernels == 5


def test_text_that_cannot_be_counted() -> None:
    loop = parse(STEP.replace("known_trip_count", "x")).computations["main"]
    with pytest.raises(ValueError, match="unknown length"):
        _ = loop["while.444"].trips
    with pytest.raises(ValueError, match="no ENTRY"):
        parse("module @jit_step {}")


def test_layouts_of_a_tpu() -> None:
    shapes = shapes_of("(f32[8,128]{1,0:T(8,128)S(1)}, bf16[4,16]{1,0:T(8,128)(2,1)})")
    assert [(s.size, s.bytes) for s in shapes] == [(4096, 0), (128, 128)]


@pytest.mark.slow
def test_every_part_of_a_step_has_its_scope() -> None:
    _, traced = trace_step(SMALL_MODEL, "1", batch=1, precision="bfloat16")
    names = re.findall(r'loc\("([^"]*)"', traced.lower().as_text(debug_info=True))
    assert set(PARTS) <= {part_of(name) for name in names}
    assert part_of("jit(step)/jvp(blocks)/windows/ppermute") == "attention"


def counted(text: str) -> float:
    program = parse(text)
    return sum(
        operations(program, where, instruction)
        for where in program.computations.values()
        for instruction in where.values()
        if instruction.opcode != "fusion"
    )


def product(a, b):
    return lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,))))


def convolution(x, kernel):
    return lax.conv_general_dilated(
        x, kernel, (2, 2), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def test_as_many_operations_as_the_traced_function() -> None:
    gradient = jax.grad(lambda x, k: convolution(x, k).sum(), 1)
    for function, *shapes in (
        (product, (3, 5, 7), (3, 7, 11)),
        (convolution, (2, 13, 15, 4), (3, 5, 4, 6)),
        (gradient, (1, 9, 9, 4), (3, 3, 4, 6)),
    ):
        arrays = [jnp.ones(shape) for shape in shapes]
        text = jax.jit(function).lower(*arrays).compile().as_text()
        assert counted(text) == count_flops(function, *arrays), function


def test_taps_on_padding_are_no_operations() -> None:
    text = """
ENTRY %main (x: f32[1,4,1], k: f32[3,1,1]) -> f32[1,4,1] {
  %x = f32[1,4,1]{2,1,0} parameter(0)
  %k = f32[3,1,1]{2,1,0} parameter(1)
  ROOT %c = f32[1,4,1] convolution(%x, %k), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f
}
"""  # noqa: E501
    assert counted(text) == 2 * (4 * 3 - 2)


# Purpose, runs and bytes of each transfer of STEP, and the kernels beside it. Halos in
# one launch are one message.
SUMMED = 2 * ROW
TRANSFERS = [
    ("collective-permute", HALO, 1, 2 * 32 * 32 * 6, 0),
    ("collective-permute", HALO, 1, 2 * (3 + 2) * 64, 1),
    ("reduce-scatter", OTHER, 1, 4 * 16 * 64 / 2, 0),
    ("all-reduce", SUMS, 5, 5 * SUMMED, 1),
]


def test_transfers_wait_for_what_no_kernel_hides() -> None:
    sent = transfers(parse(STEP), MESH, H100)
    rows = [(t.collective, t.purpose, t.kernels) for t in sent]
    assert [(c.kind, p, c.times, c.sent, n) for c, p, n in rows] == TRANSFERS
    each = {row["purpose"]: row for row in summary(sent, H100)}
    row = each[SUMS]
    assert (row["number"], row["bytes"]) == (5, 5 * SUMMED)
    assert row["seconds"] == pytest.approx(5 * (10e-6 + SUMMED / 450e9))
    assert 0 < row["exposed_seconds"] < row["seconds"]
    assert (row["nothing_beside"], row["median_kernels_beside"]) == (0, 1)
    assert each[OTHER]["exposed_seconds"] == each[OTHER]["seconds"]
    assert (each[HALO]["number"], each[HALO]["nothing_beside"]) == (2, 1)


def test_a_collective_that_blocks_hides_nothing() -> None:
    sync = 'backend_config={"collective_backend_config":{"is_sync":true}}, '
    text = STEP.replace("to_apply=%add, ", "to_apply=%add, " + sync)
    rows = {r["purpose"]: r for r in summary(transfers(parse(text), MESH, H100), H100)}
    assert rows[SUMS]["exposed_seconds"] == rows[SUMS]["seconds"]


@pytest.mark.parametrize(
    ("old", "new", "products"),
    [
        ("", "", (1, 0, 0)),
        ("%a = f8e4m3fn", "%a = bf16", (0, 1, 0)),
        ("f8e4m3fn[8,16]{1,0} convert(%p0)", "f32[16,32]{1,0} convert(%p1)", (1, 0, 1)),
    ],
)
def test_float8_products_of_a_program(old, new, products) -> None:
    counts = dict(zip(("products", "mixed", "widened"), products, strict=True))
    assert float8_of(parse(FLOAT8.replace(old, new) if old else FLOAT8)) == counts
    account = {"float8": 16, "float8_traced": 1, "float8_products": counts}
    assert any("float8" in line for line in float8_problems(account)) == bool(old)
    assert float8_problems({}) == []


def test_float8_products_of_a_trace() -> None:
    """Forward and in the gradient of x, not of weights; in a loop one counts once."""
    x, kernel = jnp.ones((8, 16)), jnp.ones((16, 32))
    both = jax.grad(lambda x, kernel: float8_dense(x, kernel).sum(), argnums=(0, 1))
    assert traced_products(jax.make_jaxpr(both)(x, kernel)) == 2
    body = lambda carry, _: (float8_dense(carry, kernel[:, :16]), None)  # noqa: E731
    looped = jax.make_jaxpr(lambda x: lax.scan(body, x, length=3))(x)
    assert traced_products(looped) == 1


@pytest.fixture
def run(tmp_path):
    """Runs the benchmark on programs that were compiled before."""
    counts = {
        "memory": {"arguments": 1, "temporary": 2, "peak": 3},
        **{"compile_seconds": 1.0, "estimate_seconds": None},
        **{"traced": 4e6, "useful": 4e6},
    }
    for mesh in ("1", "domain2"):
        folder = Job("h100", "small", mesh, "none").folder(tmp_path)
        folder.mkdir(parents=True)
        (folder / TEXT).write_text(STEP)
        (folder / ACCOUNT).write_text(json.dumps(counts))
    words = ["--config", "small", "--remat", "none", "--reuse", "--parallelism"]
    words += ["domain2", "--programs", str(tmp_path), "--out", str(tmp_path)]
    report = tmp_path / "accelerator_small.json"

    def run(*options):
        status = main([*words, *options])
        return status, json.loads(report.read_text()), report

    return run


def test_an_account_and_one_that_grew(run, tmp_path, capsys) -> None:
    status, report, path = run()
    (program,) = report["programs"]
    assert status == 0
    assert program["kernels"] == LAUNCHES
    assert sum(part["kernels"] for part in program["parts"].values()) == LAUNCHES
    assert program["useful_flops"] == 2e6, "a sample is shared by two devices"
    assert program["exposed_seconds"] > 0
    assert list(program["steps"]) == ["1", "2", "5"]
    one, two, five = program["steps"].values()
    assert five - two == pytest.approx(3 * (two - one))
    assert two - one == pytest.approx(LAUNCHES * 1e-6)
    text = path.with_suffix(".md").read_text()
    assert f"| domain2, remat none | {LAUNCHES} |" in text
    assert "collective-permute | halo" in text

    older = tmp_path / "older.json"

    def against():
        older.write_text(json.dumps(report))
        return run("--against", str(older))[0], capsys.readouterr().err

    assert against()[0] == 0
    program["bytes"] = int(program["bytes"] / (1 + GROWTH) ** 2)
    status, printed = against()
    assert status == 1
    assert "bytes grew from" in printed
    assert "kernels grew" not in printed
    assert "of the same jaxlib" not in printed
    report["recipe"]["versions"]["jaxlib"] = "0.1.2"
    assert "is of jaxlib 0.1.2, this one of" in against()[1]
    program["title"] = "domain2, remat full"
    status, printed = against()
    assert status == 1
    assert "domain2, remat none: the older report has no such program" in printed


@pytest.mark.slow
def test_operations_of_credits_eager_step_are_those_of_ours(credit) -> None:
    from benchmarks.accelerator.torch_eager import eager_step

    _, traced = trace_step(SMALL_MODEL, "1", batch=1)
    ours = flops_of(traced.jaxpr)
    theirs = sum(kernel.flops for kernel in eager_step(SMALL_MODEL))
    print(f"CREDIT {theirs:.4g}, ours {ours:.4g}")
    assert theirs == pytest.approx(ours, rel=0.03)


def test_autocast_halves_products_and_keeps_sums(credit, torch) -> None:
    from benchmarks.accelerator.torch_eager import _Autocast

    weight = torch.ones(3, 3, requires_grad=True)
    with _Autocast():
        product = torch.ones(2, 3) @ weight
        assert product.dtype == (product * product).dtype == torch.bfloat16
        assert torch.softmax(product, -1).dtype == torch.float32
        assert product.pow(2).dtype == torch.float32
        assert torch.dot(torch.ones(2), product[:, 0]).dtype == torch.float32


# GPU kernels: their cases, and what limits them, from PTX and what ptxas says.


def test_names_are_unique_and_operations_those_of_the_models() -> None:
    sizes = [cases(size) for size in ("025deg", "small")]
    for each in sizes:
        assert len({case.name for case in each}) == len(each)
    large, small = ({case.operation for case in each} for each in sizes)
    assert large == small
    # One is part of `layer_norm_and_skip`.
    assert all(callable(getattr(library_kernels, o)) for o in {*large, "layer_norm"})


@pytest.mark.slow(but=["small"])
@pytest.mark.parametrize("size", ["025deg", "small"])
def test_kernels_have_the_types_of_their_definitions(size) -> None:
    for case in cases(size):
        for dtype in case.dtypes:
            arrays = [jax.ShapeDtypeStruct(s, jnp.dtype(dtype)) for s in case.shapes]
            types = [
                jax.eval_shape(case.with_gradients(function), *arrays)
                for function in (case.interpreted, case.definition, case.kernel)
            ]
            assert types[0] == types[1] == types[2], f"{case.name}, {dtype}"


# In the loop of two turns: two loads of two values, four powers and four sums, five
# operations on addresses, and its increment, comparison and branch.
LOOP, TURNS = 2 + 4 + 4 + 5 + 3, 25


def test_instructions_count_as_often_as_they_run() -> None:
    kernel = parse_ptx(POWERS)
    work, none = kernel.work((3, 0, 0)), kernel.work((1, 0, 0))
    assert work.special == TURNS * 4 + 2, "and two roots"
    assert work.requested == 32 * 8 * (TURNS * 2 + 1), "8 bytes a thread"
    assert TURNS * LOOP < work.instructions < TURNS * LOOP + 45
    assert work.special - none.special == 2, "a program runs its branch alone"
    assert work.instructions - none.instructions == 2 + 1, "roots, and a jump"
    work = parse_ptx(PRODUCT).work((0, 0, 0))
    assert work.flops == 2 * 64 * 16 * 16 / 4, "a quarter of them for each of 4 warps"
    assert work.requested == 32 * (16 + 4 + 16)
    assert not parse_ptx(PRODUCT).is_pipelined


def parse_ptx(text=POWERS, old="", new=""):
    assert old in text
    return ptx.parse(text.replace(old, new) if old else text)


def test_what_depends_on_the_thread_and_copies_of_nothing(monkeypatch) -> None:
    guarded = parse_ptx(POWERS, "mov.u32  %r1, %ctaid.x", "mov.u32  %r1, %tid.y")
    assert guarded.work((1, 0, 0)).special == TURNS * 4 + 2, "not taken"
    copy = "cp.async.cg.shared.global [ %r12 + 0 ], [ %rd5 + 0 ], 0x10, %r99;\n"
    loop = "$L__BB0_1:\n"
    for size, times in (("16", TURNS), ("0", 0)):
        kernel = parse_ptx(POWERS, loop, f"{loop} mov.b32 %r99, {size};\n {copy}")
        more = kernel.work((0, 0, 0)).requested
        assert more - parse_ptx().work((0, 0, 0)).requested == times * 32 * 16
        assert kernel.is_pipelined
    monkeypatch.setattr(ptx, "_MOST", 100_000)
    endless = parse_ptx(POWERS, "%p1, %r36, 6400", "%p1, 0, 1")
    with pytest.raises(ValueError, match="powers_0_flops: a program with no end"):
        endless.work((0, 0, 0))


THUNKS = ("thunk_sequence.txt", "thunk_metadata.txt")


def test_what_ptxas_and_xla_say() -> None:
    assert resources(PROGRAMS["ptxas.txt"]) == {
        "window_attention_backward": Resources(255, 652, 408),
        "input_reduce_fusion": Resources(30, 0, 0, 8320),
    }
    with pytest.raises(ValueError, match="nothing of the registers of linear"):
        resources("ptxas info : Function properties for linear\n  0 bytes stack")
    each = launches(*(PROGRAMS[f"two.{name}"] for name in THUNKS))
    assert list(each) == ["loop_pad_fusion", "pallas_call.3"]
    attention = each["pallas_call.3"]
    assert attention == Launch("window_attention_backward", (66, 4, 1), 256, 98304)
    assert (attention.programs, attention.warps) == (264, 8)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "programs"),
    [
        (256, 255, 0, 1),  # 8 warps x 32 threads x 256 registers are all
        (256, 128, 0, 2),
        (256, 32, 0, 8),  # 2,048 threads
        (256, 32, 96 * 1024, 2),  # 228 KB, 1 of each program the system's
        (128, 168, 0, 3),
        (32, 16, 0, 32),
    ],
)
def test_programs_of_a_multiprocessor(threads, registers, shared, programs) -> None:
    launch = Launch("kernel", (1000,), threads, shared)
    assert programs_at_once(launch, Resources(registers, 0, 0), CHIP) == programs


def test_the_resource_that_is_needed_longest_is_the_bound() -> None:
    small = Resources(32, 0, 0)
    launch = Launch("kernel", (CHIP.count * 64,), 256, 0)
    warps, clocks = CHIP.count * 64 * 8, CHIP.count * CHIP.clock
    for bound, moved, work in (
        ("memory", 3.35e9, {}),
        ("products", 1e9, {"flops": H100.peak}),
        ("issue slots", 1e9, {"instructions": 4 * clocks}),
        ("special functions", 1e9, {"special": 16 / 32 * clocks}),
        ("L2", 1e9, {"requested": CHIP.cache_bandwidth}),
    ):
        need = ptx.Work(**{name: value * 1e-3 / warps for name, value in work.items()})
        found = limits(launch, small, need, moved, H100, pipelined=False)
        assert (found.bound, found.seconds) == (bound, pytest.approx(1e-3))
    one, none = Launch("kernel", (1,), 256, 200 * 1024), ptx.Work()
    assert limits(one, small, none, 1.0, H100, pipelined=False).at_once == 1
    with pytest.raises(ValueError, match="fits into no multiprocessor of a100"):
        limits(one, small, none, 1.0, A100, pipelined=False)


def test_the_report_of_a_kernel_and_new_spills(tmp_path, monkeypatch, capsys) -> None:
    """From what XLA and ptxas wrote for one case."""
    case, dtype, stores = cases("025deg")[0].name, "bfloat16", 0
    for side in (KERNEL, DEFINITION):
        name = function_name(case, dtype, side)
        folder = tmp_path / "h100" / side
        folder.mkdir(parents=True)
        (folder / f"{name}.hlo").write_text(PROGRAMS["case.hlo"])
        for ending, text in (
            *((name, PROGRAMS[f"case.{name}"]) for name in THUNKS),
            *(("1.ptx", POWERS), ("2.ptx", "")),
        ):
            (folder / f"module_0001.jit_{name}.{ending}").write_text(text)
    monkeypatch.setattr(
        own_kernels,
        "_assembled",
        lambda path, target: {"powers_0_flops": Resources(58, stores, 0)},
    )
    monkeypatch.setattr(own_kernels, "AHEAD", 1.5)
    folders = ["--programs", str(tmp_path), "--out", str(tmp_path)]

    def run(*options):
        return own_kernels.main(["--reuse", "--cases", case, *folders, *options])

    assert run() == 0
    report = tmp_path / "own_kernels-h100.json"
    (row,) = json.loads(report.read_text())["cases"]
    (kernel,) = row["kernels"]
    assert kernel["kernel"] == "powers_0_flops"
    assert (kernel["registers"], kernel["shared"], kernel["programs"]) == (58, 512, 4)
    assert kernel["bytes"] == 4 * (200 + 4) * 128
    # The copy is the same in both programs; the definition's kernel is perfect.
    assert row["seconds"] > row["definition_seconds"] > 2 * 2e-6
    text = report.with_suffix(".md").read_text()
    assert f"| powers: {case}, {dtype} | 58 | 0 |" in text
    assert "issue slots, ms" in text

    stores, against = 8, ["--against", str(tmp_path / "older.json")]
    assert run() == 0, "without an older report spills are told only"
    (tmp_path / "older.json").write_text(report.read_text())
    assert run(*against) == 0
    stores = 12
    assert run(*against) == 1
    assert "powers_0_flops spills 12 bytes a thread, and 8" in capsys.readouterr().err
