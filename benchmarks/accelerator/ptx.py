"""Instructions that one warp of a kernel issues, counted in its PTX.

The integers of a program are computed along its control flow, so that an instruction
counts as often as its loops run. What depends on the thread is unknown: such a branch
is not taken, and both sides of a guard count. ptxas renames registers and expands few
instructions, so that the count is within a tenth of that of the machine code.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

_ENTRY = re.compile(r"\.entry (\w+)\(")
_STATEMENT = re.compile(r"^\s*(?:@(!?)(%p\d+)\s+)?([a-z][\w.:]*)\s*(.*)$", re.DOTALL)
_LABEL = re.compile(r"^(\$\w+):")
_TARGETS = re.compile(r"^(\$\w+):\s*\.branchtargets")
_MATRIX = re.compile(r"\.m(\d+)n(\d+)k(\d+)")
_ACCESS = re.compile(r"^(?:ld|st)\.global.*?(?:\.v(\d))?\.[bfsu](\d+)$")
# Instructions that ptxas resolves.
_FREE = ("mov", "cvta", "ld.param", "ret")
# Instructions that are several of the machine, of which one is a special function.
_EXPANDED = {"div.full.f32": 8, "div.rn.f32": 12, "sqrt.rn.f32": 10, "div.approx": 2}
_SPECIAL = ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh", "div")
# Threads of a warp; warps that a wgmma instruction belongs to.
WARP, _GROUP = 32, 4
# Most instructions of one program that are followed.
_MOST = 4_000_000


@dataclass
class Work:
    """What one warp does.

    Attributes:
        instructions: number of issued instructions.
        special: number of them that are special functions, such as exponentials.
        flops: floating-point operations of matrix instructions, padding included.
        requested: bytes of global memory that its instructions name, masked or not.
    """

    instructions: float = 0.0
    special: float = 0.0
    flops: float = 0.0
    requested: float = 0.0

    def plus(self, other: Work, times: float) -> Work:
        """Adds another work several times."""
        return Work(
            self.instructions + times * other.instructions,
            self.special + times * other.special,
            self.flops + times * other.flops,
            self.requested + times * other.requested,
        )


@dataclass(frozen=True)
class Instruction:
    """One instruction: guard, operation and operands.

    Attributes:
        guard: the predicate, or "".
        negated: whether the guard is negated.
        opcode: opcode with all modifiers.
        operands: as text, without brackets.
    """

    guard: str
    negated: bool
    opcode: str
    operands: tuple[str, ...]

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The name of the operation, and its modifiers."""
        return tuple(self.opcode.split("."))

    @property
    def name(self) -> str:
        return self.parts[0]

    @cached_property
    def work(self) -> Work:
        """The work of one warp for the instruction."""
        if self.opcode.startswith(_FREE):
            return Work()
        matrix, access = _MATRIX.search(self.opcode), _ACCESS.match(self.opcode)
        flops = requested = 0.0
        if matrix and "mma" in self.opcode:
            m, n, k = map(int, matrix.groups())
            flops = 2.0 * m * n * k / (_GROUP if self.name == "wgmma" else 1)
        if access:
            requested = WARP * int(access[1] or 1) * int(access[2]) / 8
        if self.opcode.startswith("cp.async.c"):
            size = [int(o, 0) for o in self.operands if o.startswith("0x")]
            requested = float(WARP * (size[0] if size else 0))
        return Work(
            _EXPANDED.get(self.opcode, 1),
            float(self.name in _SPECIAL and ".f32" in self.opcode),
            flops,
            requested,
        )


@dataclass(frozen=True)
class Kernel:
    """A kernel in PTX.

    Attributes:
        name: the entry.
        instructions: instructions in order.
        labels: index of the instruction behind each label.
        tables: labels of each table of branches.
    """

    name: str
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int] = field(repr=False)
    tables: Mapping[str, tuple[str, ...]] = field(repr=False)

    @property
    def is_pipelined(self) -> bool:
        """Whether it loads values for later turns while it computes."""
        opcodes = (one.opcode for one in self.instructions)
        return any(code.startswith(("cp.async", "cp.reduce")) for code in opcodes)

    def work(self, program: Sequence[int]) -> Work:
        """Returns the work of a warp of one program.

        Args:
            program: position of the program in the grid.

        Raises:
            ValueError: a program of more than four million instructions.
        """
        registers: dict[str, int | None] = {
            f"%ctaid.{dim}": value for dim, value in zip("xyz", program, strict=False)
        }
        counts: Counter[int] = Counter()
        at = steps = 0
        while at < len(self.instructions):
            steps += 1
            if steps > _MOST:
                raise ValueError(f"{self.name}: a program with no end in sight")
            one = self.instructions[at]
            runs = _runs(one, registers)
            # A branch is issued whether it is taken or not.
            issued = one.name == "bra" or runs is not False
            if issued and not _copies_nothing(one, registers):
                counts[at] += 1
            if one.name == "bra" and runs is True:
                at = self.labels[one.operands[-1]]
            elif one.name == "ret" and runs is True:
                break
            elif one.name == "brx" and runs is True:
                index = _value(one.operands[0], registers) or 0
                at = self.labels[self.tables[one.operands[1]][index]]
            else:
                if runs is not False:
                    _execute(one, registers)
                at += 1
        total = Work()
        for index, times in counts.items():
            total = total.plus(self.instructions[index].work, times)
        return total


def entry(text: str) -> str | None:
    """Returns the name of the kernel in a PTX text, None if there is none."""
    match = _ENTRY.search(text)
    return match[1] if match else None


def parse(text: str) -> Kernel:
    """Reads the PTX of one kernel.

    Raises:
        ValueError: there is no entry in the text.
    """
    match = _ENTRY.search(text)
    if match is None:
        raise ValueError(f"no .entry in PTX that begins with {text[:80]!r}")
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    tables: dict[str, tuple[str, ...]] = {}
    lines = iter(text[match.end() :].splitlines())
    for line in lines:
        if table := _TARGETS.match(line.strip()):
            targets = line
            while ";" not in targets:
                targets += next(lines)
            tables[table[1]] = tuple(re.findall(r"\$\w+", targets)[1:])
        elif label := _LABEL.match(line.strip()):
            labels[label[1]] = len(instructions)
        else:
            statements = line.split("//")[0].split(";")[:-1]
            instructions += [one for text in statements for one in _instruction(text)]
    return Kernel(match[1], tuple(instructions), labels, tables)


def _instruction(text: str) -> list[Instruction]:
    match = _STATEMENT.match(text)
    if not match:
        return []
    operands = re.sub(r"[\[\]{}]", "", match[4])
    parts = tuple(part.strip() for part in operands.split(",") if part.strip())
    return [Instruction(match[2] or "", bool(match[1]), match[3], parts)]


Registers = dict[str, int | None]


def _runs(one: Instruction, registers: Registers) -> bool | None:
    """Whether the guard of an instruction holds; None if that depends on the thread."""
    if not one.guard:
        return True
    value = registers.get(one.guard)
    return None if value is None else bool(value) != one.negated


def _value(operand: str, registers: Registers) -> int | None:
    try:
        return int(operand, 0)
    except ValueError:
        return registers.get(operand)


def _copies_nothing(one: Instruction, registers: Registers) -> bool:
    """Whether an asynchronous copy is of 0 bytes: that of a turn behind the last."""
    if not one.opcode.startswith("cp.async.c") or len(one.operands) < 4:
        return False
    return _value(one.operands[-1], registers) == 0


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")
}
_BINARY: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "min": min,
    "max": max,
    "shl": lambda a, b: a << min(b, 64),
    "shr": lambda a, b: a >> min(b, 64),
    "div": lambda a, b: _toward_zero(a, b),
    "rem": lambda a, b: a - b * _toward_zero(a, b),
}


_KNOWN = {*_BINARY, "mov", "cvt", "setp", "selp", "mad", "not"}
_INTEGER = re.compile(r"pred|[bus]\d+")


def _toward_zero(a: int, b: int) -> int:
    if b == 0:
        return 0
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _execute(one: Instruction, registers: Registers) -> None:
    """Computes the result of an instruction, None for what is not known."""
    if not one.operands:
        return
    target, *operands = one.operands
    parts = one.parts
    if parts[0] not in _KNOWN or not _INTEGER.fullmatch(parts[-1]):
        registers[target] = None
        return
    values = [_value(operand, registers) for operand in operands]
    registers[target] = _result(parts, values)


def _result(parts: Sequence[str], values: list[int | None]) -> int | None:
    kind = parts[-1]
    if kind == "pred":
        return _predicate(parts[0], values)
    bits = int(kind[1:])
    if parts[0] == "selp":
        first, second, chosen = values
        if chosen is None:
            return first if first == second else None
        return first if chosen else second
    if any(value is None for value in values):
        return None
    known = [_signed(v, bits, kind[0] == "s") for v in values if v is not None]
    if parts[0] in ("mov", "cvt") and len(known) == 1:
        return known[0]
    if parts[0] == "setp" and len(known) == 2:
        return int(_COMPARE[parts[1]](*known)) if parts[1] in _COMPARE else None
    if parts[0] == "mad" and len(known) == 3:
        return known[0] * known[1] + known[2]
    if parts[0] in _BINARY and len(known) == 2:
        product = _BINARY[parts[0]](*known)
        return product >> bits if "hi" in parts else product
    return None


def _predicate(name: str, values: list[int | None]) -> int | None:
    """The logic of predicates: what one known side decides is known."""
    if name == "mov":
        return None if values[0] is None else int(values[0] != 0)
    if name == "not":
        return None if values[0] is None else int(not values[0])
    decides = {"and": 0, "or": 1}.get(name)
    if decides is not None and decides in [
        None if v is None else bool(v) for v in values
    ]:
        return decides
    if any(value is None for value in values) or name not in _BINARY:
        return None
    return _BINARY[name](*(int(bool(v)) for v in values))


def _signed(value: int, bits: int, signed: bool) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value
