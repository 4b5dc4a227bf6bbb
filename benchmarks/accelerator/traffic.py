"""Bytes that an instruction reads and writes in the memory of the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from benchmarks.accelerator.program import Computation, Instruction, Program

# Operations between a parameter and a slice of it that keep its elements.
_THROUGH = ("bitcast", "reshape", "transpose", "convert", "copy")
_SLICES = ("dynamic-slice", "slice", "gather")
_DEPTH = 5


def traffic(program: Program, where: Computation, instruction: Instruction) -> int:
    """Bytes of one run: every operand read once, every result written once.

    If an operand is only sliced, the slice counts as read. A dynamic-update-slice is in
    place: only the update is moved. The workspace of a library call is neither read nor
    written.
    """
    operands = program.operands(where, instruction)
    if instruction.opcode == "fusion" and instruction.called in program.computations:
        return _of_fusion(program.computations[instruction.called])
    if instruction.opcode == "dynamic-update-slice":
        return 2 * operands[1].bytes
    if instruction.opcode in _SLICES:
        return 2 * instruction.bytes
    written = instruction.bytes
    if instruction.opcode == "custom-call":
        written -= sum(s.bytes for s in instruction.shapes if _is_workspace(s.dtype))
    return written + sum(operand.bytes for operand in operands)


def _is_workspace(dtype: str) -> bool:
    return dtype in ("s8", "u8")


def _of_fusion(fused: Computation) -> int:
    users = _users(fused)
    read = sum(
        _read(fused, users, held)
        for held in fused.values()
        if held.opcode == "parameter"
    )
    return read + sum(_written(fused, result) for result in _results(fused))


def _users(fused: Computation) -> dict[str, list[tuple[Instruction, int]]]:
    """The users of each instruction's result, with the position of the operand."""
    users: dict[str, list[tuple[Instruction, int]]] = defaultdict(list)
    for instruction in fused.values():
        for position, name in enumerate(instruction.operands):
            users[name].append((instruction, position))
    return users


def _uses(
    users: dict[str, list[tuple[Instruction, int]]], name: str, depth: int = 0
) -> Iterator[tuple[Instruction, int]]:
    """The users of a result, looking through operations of `_THROUGH`."""
    for user, position in users[name]:
        if user.opcode in _THROUGH and not user.is_root and depth < _DEPTH:
            yield from _uses(users, user.name, depth + 1)
        else:
            yield user, position


def _read(
    fused: Computation,
    users: dict[str, list[tuple[Instruction, int]]],
    parameter: Instruction,
) -> int:
    """Bytes of a parameter that the fusion reads."""
    if not parameter.shapes:
        return 0
    whole, item = parameter.bytes, parameter.shapes[0]
    elements = max(item.size, 1)
    total = 0
    for user, position in _uses(users, parameter.name):
        if user.opcode in _SLICES and position == 0:
            share = _elements(user) / max(_elements(parameter), 1)
            total += int(share * elements)
        elif user.opcode == "dynamic-update-slice" and position == 0:
            continue
        else:
            return whole
    return min(total, whole)


def _elements(instruction: Instruction) -> int:
    count = 1
    for length in instruction.shapes[0].dims:
        count *= length
    return count


def _results(fused: Computation) -> list[Instruction]:
    """The results that a fusion writes: its root, or the elements of a tuple."""
    (root,) = (held for held in fused.values() if held.is_root)
    if root.opcode == "tuple":
        return [fused[name] for name in root.operands]
    return [root]


def _written(fused: Computation, result: Instruction) -> int:
    """Bytes of a result; if it is updated in place, those of the update."""
    source, depth = result, 0
    while source.opcode == "bitcast" and depth < _DEPTH:
        source, depth = fused[source.operands[0]], depth + 1
    if source.opcode == "dynamic-update-slice":
        return fused[source.operands[1]].bytes
    return result.bytes
