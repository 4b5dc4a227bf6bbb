"""The memory of a process that reads mutated files."""

import re
from collections.abc import Iterator
from pathlib import Path

STATUS = Path("/proc/self/status")
# GiB, limit of what reading mutated files adds to a process.
MOST = 2.0


class MemoryWatch:
    """Tells how much memory a process takes from here on, at its highest.

    A process of tests may have the programs of many others in memory, so neither its
    size nor its former peak says anything: what counts is a new peak, less the size at
    the start. Unlike `ru_maxrss`, Linux' status does not include the parent's peak.
    """

    def __init__(self) -> None:
        self._peak = gibibytes("VmHWM")
        self._size = gibibytes("VmRSS")

    def growth(self) -> float:
        """Returns the growth to a new peak since the start in GiB, else 0."""
        peak = gibibytes("VmHWM")
        return peak - self._size if peak > self._peak else 0.0

    def problems(self, seed: int) -> Iterator[tuple[int, str, str]]:
        """Yields (seed, kind, problem) if this program has grown above `MOST`."""
        growth = self.growth()
        if growth > MOST:
            yield seed, "all", f"{growth:.1f} GiB of memory"


def gibibytes(name: str) -> float:
    """Returns a size of this program in GiB as Linux has it (VmHWM, VmRSS), or 0."""
    if not STATUS.exists():
        return 0.0
    match = re.search(rf"^{name}:\s*(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert match is not None, f"{STATUS} has no {name}"
    return int(match[1]) / 2**20
