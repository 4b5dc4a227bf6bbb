"""Every kernel that a compiled program runs, and its part of the model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.accelerator.operations import KERNEL, operations
from benchmarks.accelerator.program import Computation, Instruction, Program
from benchmarks.accelerator.traffic import traffic
from benchmarks.scale.hlo import KINDS
from credit_jax.parallel.compiler import ATTENTION, PARTS
from credit_jax.parallel.rows.exchange import WINDOWS

OTHER = "other"
# Kind of the kernels of `credit_jax.kernels.gpu`.
CUSTOM = "own kernel"
# Suffix of computations whose collectives are one launch.
GROUP = ".collectives_group"
FORWARD, AGAIN, BACKWARD = "forward", "recomputed", "backward"
# Instructions that launch no kernel.
_FREE = (
    "parameter",
    "constant",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "after-all",
    "iota",
    "partition-id",
    "replica-id",
    "opt-barrier",
    "optimization-barrier",
)
_PART = re.compile(rf"\b({'|'.join([*PARTS, WINDOWS])})\b")
_CONTROL = ("while", "call", "conditional")


@dataclass(frozen=True)
class Kernel:
    """An instruction that the device launches.

    Attributes:
        name: name of the instruction.
        kind: kind of the work: "loop fusion", "matmul", ...
        part: part of the model, one of `scopes.PARTS` or `OTHER`.
        phase: forward, recomputed or backward.
        times: runs in one call of the program.
        bytes, flops: bytes and floating-point operations of one run.
        op_name: its named scopes.
    """

    name: str
    kind: str
    part: str
    phase: str
    times: int
    bytes: int
    flops: float
    op_name: str


def runs(program: Program) -> Iterator[tuple[Computation, int]]:
    """The scheduled computations of a program, and how often each runs."""
    yield from _runs(program, program.entry, 1)


def _runs(program: Program, name: str, times: int) -> Iterator[tuple[Computation, int]]:
    computation = program.computations[name]
    yield computation, times
    for instruction in computation.values():
        for called, inner in called_by(instruction):
            yield from _runs(program, called, times * inner)


def called_by(instruction: Instruction) -> list[tuple[str, int]]:
    """The scheduled computations that an instruction runs, with their numbers of runs.

    Of a conditional only the first branch counts.
    """
    if instruction.opcode not in _CONTROL:
        return []
    times = instruction.trips if instruction.opcode == "while" else 1
    called = instruction.called or next(iter(instruction.branches), None)
    return [(called, times)] if called else []


def is_collective(program: Program, instruction: Instruction) -> bool:
    """Whether an instruction sends, or starts to send, to other devices."""
    opcode = instruction.opcode.removesuffix("-start")
    if opcode != "async":
        return opcode in KINDS
    # What it starts is in its line, or in the computation that it calls.
    sends = (*(f" {kind}(" for kind in KINDS), GROUP)
    started = program.computations.get(instruction.called or "", {}).values()
    return any(text in instruction.text for text in sends) or any(
        held.opcode in KINDS for held in started
    )


def is_kernel(program: Program, instruction: Instruction) -> bool:
    """Whether the device launches something for an instruction."""
    opcode = instruction.opcode
    if opcode in _FREE or opcode in _CONTROL or opcode.endswith(("-done", "-update")):
        return False
    return not is_collective(program, instruction)


def kernels(program: Program) -> list[Kernel]:
    """Every kernel of a program, those in loops with their trip counts."""
    return [
        kernel_of(program, computation, instruction, times)
        for computation, times in runs(program)
        for instruction in computation.values()
        if is_kernel(program, instruction)
    ]


def kernel_of(
    program: Program, where: Computation, instruction: Instruction, times: int = 1
) -> Kernel:
    """The account of one instruction that `is_kernel` accepts."""
    op_name = _scopes(program, instruction)
    return Kernel(
        instruction.name,
        kind_of(instruction),
        part_of(op_name),
        phase_of(op_name),
        times,
        traffic(program, where, instruction),
        operations(program, where, instruction),
        op_name,
    )


def part_of(op_name: str) -> str:
    """The innermost part that a named scope names.

    >>> part_of("jit(step)/transpose(jvp(blocks))/while/body/attention/norm/mul")
    'norm'
    """
    parts = _PART.findall(op_name)
    if not parts:
        return OTHER
    return ATTENTION if parts[-1] == WINDOWS else parts[-1]


def phase_of(op_name: str) -> str:
    """Forward, backward, or the forward recomputed in the backward pass."""
    if "rematted_computation" in op_name:
        return AGAIN
    return BACKWARD if "transpose(" in op_name else FORWARD


def kind_of(instruction: Instruction) -> str:
    """The kind of work of a kernel, in XLA's terms."""
    if instruction.opcode == "custom-call":
        target = instruction.attribute(r'custom_call_target="([^"]*)"') or ""
        if target == KERNEL:
            return CUSTOM
        if "matmul" in target or "gemm" in target:
            return "library product"
        return "library convolution" if "conv" in target else target
    if instruction.opcode != "fusion":
        return instruction.opcode
    triton = instruction.attribute(r'"kind":"__(triton\w*)"')
    if triton:
        return triton.replace("_", " ")
    words = re.sub(r"[.\d]+$", "", instruction.name).split("_")
    kind = f"{words[0]} fusion"
    if "dynamic" in instruction.name and "slice" in instruction.name:
        kind += ", slices"
    return kind


def _scopes(program: Program, instruction: Instruction) -> str:
    """The op_name of an instruction; of a fusion without a part, its most frequent."""
    op_name = instruction.op_name
    if part_of(op_name) != OTHER or instruction.opcode != "fusion":
        return op_name
    names = Counter(
        held.op_name
        for computation, _ in program.inner(instruction)
        for held in computation.values()
        if part_of(held.op_name) != OTHER
    )
    return names.most_common(1)[0][0] if names else op_name
