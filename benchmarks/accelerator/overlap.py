"""Collectives of a scheduled program, and the kernels that overlap them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from benchmarks.accelerator.kernels import (
    OTHER,
    called_by,
    is_collective,
    is_kernel,
    kernel_of,
    runs,
)
from benchmarks.accelerator.program import Computation, Instruction, Program
from benchmarks.accelerator.roofline import kernel_seconds
from benchmarks.accelerator.targets import Target
from benchmarks.scale.comm_volume import purpose
from benchmarks.scale.hlo import Collective, read_collective


@dataclass(frozen=True)
class Transfer:
    """A collective between its start and its end.

    Attributes:
        collective: what it sends.
        purpose: what it is for, see `comm_volume.purpose`.
        kernels: number of kernels between its start and its end.
        seconds: seconds of these kernels, at the roofline.
    """

    collective: Collective
    purpose: str
    kernels: int
    seconds: float

    def transfer_seconds(self, target: Target) -> float:
        """Seconds of one run, the overhead of its message included."""
        sent = self.collective.sent / max(self.collective.times, 1)
        return target.message + sent / target.link


def transfers(
    program: Program, mesh: Mapping[str, int], target: Target
) -> list[Transfer]:
    """Every collective of a program.

    Args:
        program: optimized and scheduled.
        mesh: degree of every axis, outermost first.
        target: the device.
    """
    return [
        _transfer(program, computation, position, times, mesh, target)
        for computation, times in runs(program)
        for position, instruction in enumerate(computation.values())
        if is_collective(program, instruction)
    ]


def summary(transfers: Sequence[Transfer], target: Target) -> list[dict[str, Any]]:
    """Sums of the transfers of each kind and purpose, ordered by exposed time."""
    groups: dict[tuple[str, str], list[Transfer]] = {}
    for transfer in transfers:
        key = (transfer.collective.kind, transfer.purpose)
        groups.setdefault(key, []).append(transfer)
    rows = [_row(*key, group, target) for key, group in groups.items()]
    return sorted(rows, key=lambda row: -row["exposed_seconds"])


def _row(
    kind: str, purpose: str, group: Sequence[Transfer], target: Target
) -> dict[str, Any]:
    count = [t.collective.times for t in group]
    seconds = [t.transfer_seconds(target) for t in group]
    alone = sum(n for n, t in zip(count, group, strict=True) if not t.kernels)
    waits = (max(s - t.seconds, 0.0) for s, t in zip(seconds, group, strict=True))
    return {
        "kind": kind,
        "purpose": purpose,
        "number": sum(count),
        "bytes": sum(t.collective.sent for t in group),
        "seconds": sum(n * s for n, s in zip(count, seconds, strict=True)),
        "nothing_beside": alone,
        "median_kernels_beside": median(
            t.kernels for t in group for _ in range(t.collective.times)
        ),
        "exposed_seconds": sum(n * w for n, w in zip(count, waits, strict=True)),
    }


def _transfer(
    program: Program,
    where: Computation,
    position: int,
    times: int,
    mesh: Mapping[str, int],
    target: Target,
) -> Transfer:
    order = list(where.values())
    end = _end(order, position)
    done = order[min(end, len(order) - 1)]
    collective = _read(program, order[position], done, times)
    beside = order[position + 1 : end]
    work = [_work(program, where, held, target) for held in beside]
    return Transfer(
        collective,
        _purpose(collective, mesh),
        sum(kernels for kernels, _ in work),
        sum(seconds for _, seconds in work),
    )


def _purpose(collective: Collective, mesh: Mapping[str, int]) -> str:
    """Its purpose; `OTHER` for what no step of a WXFormer sends."""
    try:
        return purpose(collective, mesh)
    except ValueError:
        return OTHER


def _read(
    program: Program, start: Instruction, done: Instruction, times: int
) -> Collective:
    """Reads a collective; several in one launch are one, with the name of its end."""
    alone = read_collective(start.text, times)
    if alone:
        return alone
    grouped = program.computations[start.called or ""].values()
    parts = [read_collective(part.text, times) for part in grouped]
    sent = [part for part in parts if part]
    result = sum(part.result for part in sent)
    return replace(sent[0], result=result, name=done.op_name)


def _end(order: Sequence[Instruction], position: int) -> int:
    """Position of the end of a collective; a synchronous one ends where it starts."""
    start = order[position]
    if not start.opcode.endswith("-start") or '"is_sync":true' in start.text:
        return position + 1
    name = start.name
    for later in range(position + 1, len(order)):
        if name in order[later].operands:
            if order[later].opcode.endswith("-done"):
                return later
            if order[later].opcode.endswith("-update"):
                name = order[later].name
    return position + 1


def _work(
    program: Program, where: Computation, instruction: Instruction, target: Target
) -> tuple[int, float]:
    """Number of kernels of an instruction, and their seconds."""
    if is_kernel(program, instruction):
        kernel = kernel_of(program, where, instruction)
        return 1, kernel_seconds(kernel, target) + target.launch
    kernels, seconds = 0, 0.0
    for name, times in called_by(instruction):
        inner = program.computations[name]
        for held in inner.values():
            count, span = _work(program, inner, held, target)
            kernels, seconds = kernels + times * count, seconds + times * span
    return kernels, seconds
