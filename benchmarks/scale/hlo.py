"""Collectives of a compiled program, read from its HLO text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

_BYTES = {
    **dict.fromkeys(("pred", "s8", "u8"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64", "c64"), 8),
}
KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "collective-permute",
    "all-to-all",
)
# "%name = f32[2,3]{1,0} all-reduce(...)", a tuple of shapes, or an asynchronous start.
_LINE = re.compile(
    rf"= (?P<shape>\(.*?\)|\S+) (?P<kind>{'|'.join(KINDS)})(?:-start)?\((?P<rest>.*)"
)
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_GROUPS = re.compile(r"replica_groups=\{\{([\d,]+)\}")
_IOTA_GROUPS = re.compile(
    r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?"
)
# Since jaxlib 0.11: mesh['dp'=2,'tp'=4] {'dp'}
_AXIS_GROUPS = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{((?:'\w+',?)+)\}")
_AXIS_SIZE = re.compile(r"'(\w+)'=(\d+)")
_PAIRS = re.compile(r"source_target_pairs=\{\{([\d,]+)\}")
_NAME = re.compile(r'op_name="([^"]*)"')
_LOOP = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CALLS = re.compile(r"(?:body|to_apply|calls|branch_computations)=\{?%?([\w.\-]+)")
_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")


@dataclass(frozen=True)
class Collective:
    """One collective instruction.

    Attributes:
        kind: one of `KINDS`.
        result: bytes of its result on one device.
        members: the devices of its first group, or of a permute's first pair.
        times: number of runs in one call of the program.
        name: its named scopes.
    """

    kind: str
    result: int
    members: tuple[int, ...]
    times: int
    name: str = ""

    @property
    def group(self) -> int:
        """Number of devices in a group."""
        return len(self.members)

    @property
    def sent(self) -> float:
        """Bytes that one device sends, with the algorithm that sends least.

        That is 2 (n - 1) / n of the array for all-reduce, (n - 1) / n of the whole
        array for all-gather, reduce-scatter and all-to-all, and the array for a
        permute.
        """
        share = (self.group - 1) / self.group
        factor = {
            "all-reduce": 2 * share,
            "all-gather": share,
            "reduce-scatter": share * self.group,
            "all-to-all": share,
            "collective-permute": 1.0,
        }[self.kind]
        return self.times * self.result * factor

    def axes(self, mesh: Mapping[str, int]) -> tuple[str, ...]:
        """The mesh axes along which it communicates.

        Args:
            mesh: degree of every axis, outermost first.
        """
        coords = np.stack(np.unravel_index(self.members, tuple(mesh.values())))
        differ = (coords != coords[:, :1]).any(1)
        return tuple(axis for axis, moved in zip(mesh, differ, strict=True) if moved)


def collectives(hlo: str) -> list[Collective]:
    """Every collective of a compiled program, those in loops with their trip counts.

    Args:
        hlo: `compiled.as_text()`.

    Raises:
        ValueError: a collective is in a loop whose trip count is not in the program.
    """
    bodies = _computations(hlo)
    instructions: list[Collective] = []
    for name, times in _runs(bodies, _entry(hlo)):
        for line in bodies[name]:
            collective = read_collective(line, times)
            if collective:
                instructions.append(collective)
    return instructions


def read_collective(line: str, times: int) -> Collective | None:
    """The collective of an instruction that runs `times` times; None if it is not one.

    Raises:
        ValueError: `times` is negative, for a loop of unknown length.
    """
    match = _LINE.search(line)
    return _collective(match, times) if match else None


def _collective(match: re.Match[str], times: int) -> Collective:
    if times < 0:
        raise ValueError(f"{match[0][:80]} is in a loop of unknown length")
    shapes = [_size(*shape) for shape in _SHAPE.findall(match["shape"])]
    if "-start(" in match[0] and match["kind"] != "all-reduce":
        shapes = shapes[len(shapes) // 2 :]
    name = _NAME.search(match["rest"])
    members = _members(match["rest"])
    return Collective(
        match["kind"], sum(shapes), members, times, name[1] if name else ""
    )


def _members(attributes: str) -> tuple[int, ...]:
    """The devices of the first group, see `Collective.members`.

    XLA lists the groups, names the axes of a mesh that the groups span, or writes the
    shape [groups, members] into which it reshapes an array of devices whose dims may be
    transposed.
    """
    listed = _GROUPS.search(attributes) or _PAIRS.search(attributes)
    if listed:
        return _numbers(listed[1])
    named = _AXIS_GROUPS.search(attributes)
    if named:
        sizes = {name: int(size) for name, size in _AXIS_SIZE.findall(named[1])}
        spanned = re.findall(r"\w+", named[2])
        order = [*(name for name in sizes if name not in spanned), *spanned]
        devices = np.arange(math.prod(sizes.values())).reshape(*sizes.values())
        devices = devices.transpose([list(sizes).index(name) for name in order])
        first = devices.reshape(-1, math.prod(sizes[name] for name in spanned))[0]
        return tuple(first.tolist())
    iota = _IOTA_GROUPS.search(attributes)
    if not iota:
        raise ValueError(f"no groups of devices in {attributes[:200]}")
    shape = _numbers(iota[3])
    devices = np.arange(math.prod(shape)).reshape(shape)
    if iota[4]:
        devices = devices.transpose(_numbers(iota[4]))
    first = devices.reshape(int(iota[1]), int(iota[2]))[0]
    return tuple(first.tolist())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _size(dtype: str, dims: str) -> int:
    return _BYTES.get(dtype, 0) * math.prod(int(d) for d in dims.split(",") if d)


def _computations(hlo: str) -> dict[str, list[str]]:
    """Lines of every computation, by name."""
    bodies: dict[str, list[str]] = {}
    current: list[str] = []
    for line in hlo.splitlines():
        head = _HEAD.match(line)
        if head:
            current = bodies.setdefault(head[1], [])
        else:
            current.append(line)
    return bodies


def _entry(hlo: str) -> str:
    match = re.search(r"^ENTRY %?([\w.\-]+)", hlo, re.MULTILINE)
    assert match, "the text has no ENTRY computation"
    return match[1]


def _runs(
    bodies: dict[str, list[str]], name: str, times: int = 1
) -> Iterator[tuple[str, int]]:
    """(computation, number of runs) of all that `name` calls; -1 for unknown."""
    yield name, times
    for line in bodies.get(name, []):
        inner = 1
        if " while(" in line:
            loop = _LOOP.search(line)
            inner = int(loop[1]) if loop else -1
        for called in _CALLS.findall(line):
            if called in bodies:
                known = times > 0 and inner > 0
                yield from _runs(bodies, called, times * inner if known else -1)
