"""What limits a kernel on a GPU: memory, matrix products, issue slots, or few programs.

Registers and spills are those that ptxas reports, instructions those of the PTX. The
time of a kernel is that of the resource that it needs longest, or longer: a program
that loads, multiplies and computes in turn leaves the other resources idle, unless
other programs of the multiprocessor use them. Nothing is measured.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from benchmarks.accelerator.ptx import WARP, Work
from benchmarks.accelerator.targets import Chip, Target

_FUNCTION = re.compile(r"Function properties for (\w+)")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_LAUNCH = re.compile(
    r"^(\d+):.*?\] (\S+) grid: \[([\d, ]+)\] threads: \[(\d+), 1, 1\]\s+"
    r"shared_memory: (\d+) bytes",
    re.MULTILINE,
)
_ANNOTATION = re.compile(r'profile_annotation: "([^"]*)"\s+thunk_id: (\d+)')
# Registers are given to warps in units, shared memory has some of the system's own.
_REGISTER_UNIT, _RESERVED = 256, 1024
_SCHEDULERS = 4
LATENCY = "latency"


@dataclass(frozen=True)
class Resources:
    """What ptxas says about a kernel.

    Attributes:
        registers: registers of a thread.
        spill_stores, spill_loads: bytes of a thread that registers had no room for.
        shared: bytes of shared memory that are declared, for which no launch asks.
    """

    registers: int
    spill_stores: int
    spill_loads: int
    shared: int = 0


def resources(log: str) -> dict[str, Resources]:
    """Reads what `ptxas -v` prints, by the name of the kernel.

    Raises:
        ValueError: the log says nothing of a kernel's registers or spills.
    """
    parts = _FUNCTION.split(log)
    by_function = {}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        spills, used, shared = (p.search(text) for p in (_SPILLS, _USED, _SHARED))
        if not spills or not used:
            raise ValueError(f"ptxas says nothing of the registers of {name}:\n{text}")
        stores, loads = int(spills[1]), int(spills[2])
        by_function[name] = Resources(
            int(used[1]), stores, loads, int(shared[1]) if shared else 0
        )
    return by_function


@dataclass(frozen=True)
class Launch:
    """A launch of a kernel.

    Attributes:
        name: name of the kernel.
        grid: number of programs along each dim.
        threads: threads of a program.
        shared: bytes of shared memory of a program.
    """

    name: str
    grid: tuple[int, ...]
    threads: int
    shared: int

    @property
    def programs(self) -> int:
        return math.prod(self.grid)

    @property
    def warps(self) -> int:
        return self.threads // WARP


def launches(sequence: str, metadata: str) -> dict[str, Launch]:
    """Reads XLA's list of the launches of a program.

    Args:
        sequence, metadata: what XLA dumps as thunk_sequence and thunk_metadata.

    Returns:
        The launches by the name of the instruction in the optimized program.
    """
    names = {int(number): name for name, number in _ANNOTATION.findall(metadata)}
    return {
        names[int(number)]: Launch(
            name, tuple(map(int, grid.split(","))), int(threads), int(shared)
        )
        for number, name, grid, threads, shared in _LAUNCH.findall(sequence)
    }


def programs_at_once(launch: Launch, resources: Resources, chip: Chip) -> int:
    """Number of programs that a multiprocessor holds."""
    unit = _REGISTER_UNIT
    of_warp = -(-resources.registers * WARP // unit) * unit
    shared = launch.shared + resources.shared + _RESERVED
    return min(
        chip.programs,
        chip.threads // launch.threads,
        chip.registers // (of_warp * launch.warps),
        chip.shared_memory // shared,
    )


@dataclass(frozen=True)
class Limits:
    """The account of one kernel.

    Attributes:
        launch, resources: how it runs.
        at_once: programs that a multiprocessor holds.
        waves: programs, divided by those that the device holds.
        needs: seconds that each resource is needed for.
        seconds: seconds of the kernel, without its launch.
        bound: the resource that takes longest, or `LATENCY`.
    """

    launch: Launch
    resources: Resources
    at_once: int
    waves: float
    needs: dict[str, float]
    seconds: float
    bound: str


def limits(
    launch: Launch,
    resources: Resources,
    work: Work,
    moved: float,
    target: Target,
    *,
    pipelined: bool,
) -> Limits:
    """Computes what limits a kernel.

    Args:
        launch: grid, threads and shared memory.
        resources: resources of a thread.
        work: work of one warp of an average program.
        moved: bytes that all programs read and write, each once.
        target: a GPU.
        pipelined: whether a program loads values while it computes with others.

    Raises:
        ValueError: not one program fits into a multiprocessor.
    """
    chip = target.chip
    assert chip is not None, target.name
    at_once = programs_at_once(launch, resources, chip)
    if at_once < 1:
        raise ValueError(
            f"{launch.name}: a program of {launch.threads} threads with "
            f"{resources.registers} registers and {launch.shared} bytes of shared "
            f"memory fits into no multiprocessor of {target.name}"
        )
    warps, clocks = launch.programs * launch.warps, chip.count * chip.clock
    needs = {
        "memory": moved / target.bandwidth,
        "L2": warps * work.requested / chip.cache_bandwidth,
        "products": warps * work.flops / target.peak,
        "issue slots": warps * work.instructions / (clocks * _SCHEDULERS),
        "special functions": warps * work.special * WARP / (clocks * chip.special),
    }
    loads = max(needs["memory"], needs["L2"])
    computes = needs["products"] + max(needs["issue slots"], needs["special functions"])
    alone = max(loads, computes) if pipelined else loads + computes
    each = launch.programs / chip.count
    bound = max(needs, key=lambda name: needs[name])
    seconds = max(needs[bound], alone / min(at_once, math.ceil(each)))
    if seconds > needs[bound]:
        bound = LATENCY
    # The multiprocessor with most programs takes longest.
    seconds *= math.ceil(each) / each
    waves = each / at_once
    return Limits(launch, resources, at_once, waves, needs, seconds, bound)
