"""The most memory that a process has used."""

import re
from collections.abc import Iterator
from pathlib import Path

STATUS = Path("/proc/self/status")
# Of a process that tries changed files.
MOST = 4.0


def peak_gibibytes() -> float:
    """The peak of this program, of Linux, in GiB.

    Unlike `ru_maxrss`, which a program takes over from the process that started it,
    however large that was.
    """
    found = re.search(r"^VmHWM:\s*(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert found is not None, f"{STATUS} has no VmHWM"
    return int(found[1]) / 2**20


def memory_problems(seed: int) -> Iterator[tuple[int, str, str]]:
    """(seed, kind, what is wrong) if this program has used more than `MOST` GiB."""
    peak = peak_gibibytes()
    if peak > MOST:
        yield seed, "all", f"{peak:.1f} GiB of memory"
