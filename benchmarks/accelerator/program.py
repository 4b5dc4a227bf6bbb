"""An optimized HLO program, read from its text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

_ITEM = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
}
_SHAPE = re.compile(rf"\b({'|'.join(_ITEM)})\[([\d,]*)\](?:\{{([^}}]*)\}})?")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-$]+) \(.*\{$")
_NAME = re.compile(r"^(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"([\w\-]+)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CALLED = re.compile(r"(?:calls|to_apply|body)=%?([\w.\-$]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
# On-chip memory of a TPU, as named in layouts.
_ON_CHIP = "S(1)"


@dataclass(frozen=True)
class Shape:
    """An array of a program.

    Attributes:
        dtype: HLO's name of the dtype.
        dims: lengths.
        on_chip: whether it is in on-chip memory of a TPU, not in HBM.
    """

    dtype: str
    dims: tuple[int, ...]
    on_chip: bool = False

    @property
    def size(self) -> int:
        """Bytes of the array, wherever it is."""
        return _ITEM[self.dtype] * math.prod(self.dims)

    @property
    def bytes(self) -> int:
        """Bytes of the array in the memory of the device."""
        return 0 if self.on_chip else self.size


@dataclass(frozen=True)
class Instruction:
    """One instruction of a computation.

    Attributes:
        name: unique in its computation.
        opcode: such as "fusion".
        shapes: arrays of its result, those of a tuple in order.
        operands: names of instructions.
        text: the line.
        is_root: whether it is the result of the computation.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    text: str = field(repr=False)
    is_root: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of its result in the memory of the device."""
        return sum(shape.bytes for shape in self.shapes)

    @cached_property
    def op_name(self) -> str:
        """Named scopes and primitive that it was lowered from, or ""."""
        match = _OP_NAME.search(self.text)
        return match[1] if match else ""

    @property
    def called(self) -> str | None:
        """The computation of a fusion or call, the body of a loop."""
        match = _CALLED.search(self.text)
        return match[1] if match else None

    @property
    def branches(self) -> tuple[str, ...]:
        """Computations of a conditional."""
        match = _BRANCHES.search(self.text)
        return tuple(_OPERAND.findall(match[1])) if match else ()

    @property
    def trips(self) -> int:
        """Iterations of a loop.

        Raises:
            ValueError: XLA recorded no trip count.
        """
        match = _TRIPS.search(self.text)
        if not match:
            raise ValueError(f"a loop of unknown length: {self.text[:200]}")
        return int(match[1])

    def attribute(self, pattern: str) -> str | None:
        """The first group of a regular expression in the line, if it is there."""
        match = re.search(pattern, self.text)
        return match[1] if match else None


Computation = dict[str, Instruction]


@dataclass(frozen=True)
class Program:
    """Computations by name, each in the order of its schedule, and the entry."""

    computations: dict[str, Computation]
    entry: str

    def operands(self, where: Computation, of: Instruction) -> list[Instruction]:
        """The instructions whose results an instruction takes."""
        return [where[name] for name in of.operands if name in where]

    def inner(self, instruction: Instruction) -> Iterator[tuple[Computation, str]]:
        """The computations inside of a fusion, nested ones included, with names."""
        name = instruction.called
        if name is None or name not in self.computations:
            return
        computation = self.computations[name]
        yield computation, name
        for held in computation.values():
            if held.opcode == "fusion":
                yield from self.inner(held)


def parse(text: str) -> Program:
    """Reads `compiled.as_text()`.

    Raises:
        ValueError: the text has no ENTRY computation.
    """
    computations: dict[str, Computation] = {}
    entry, current = "", None
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            current = computations.setdefault(head[2], {})
            entry = head[2] if head[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None:
            instruction = _instruction(line.strip())
            if instruction:
                current[instruction.name] = instruction
    if not entry:
        raise ValueError("the text has no ENTRY computation; is it optimized HLO?")
    return Program(computations, entry)


def shapes_of(text: str) -> tuple[Shape, ...]:
    """Every array shape in a piece of HLO text.

    >>> shapes_of("(bf16[2,3]{1,0:T(8,128)S(1)}, f32[])")[1]
    Shape(dtype='f32', dims=(), on_chip=False)
    """
    return tuple(
        Shape(dtype, tuple(int(d) for d in dims.split(",") if d), _ON_CHIP in layout)
        for dtype, dims, layout in _SHAPE.findall(text)
    )


def _instruction(line: str) -> Instruction | None:
    name = _NAME.match(line)
    if not name:
        return None
    rest = line[name.end() :]
    result = _closing(rest, 0) if rest.startswith("(") else rest.index(" ")
    opcode = _OPCODE.search(rest, result)
    if not opcode:
        return None
    arguments = rest[opcode.end() - 1 : _closing(rest, opcode.end() - 1)]
    return Instruction(
        name[2],
        opcode[1],
        shapes_of(rest[:result]),
        tuple(_OPERAND.findall(arguments)),
        line,
        bool(name[1]),
    )


def _closing(text: str, start: int) -> int:
    """The position after the bracket that closes the one at `start`."""
    depth = 0
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position + 1
    return len(text)
