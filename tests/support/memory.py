"""The peak memory of a process."""

import re
from collections.abc import Iterator
from pathlib import Path

STATUS = Path("/proc/self/status")
# GiB, limit of a process that reads mutated files.
MOST = 4.0


def peak_gibibytes() -> float:
    """Returns the peak memory of this program as reported by Linux, in GiB.

    Unlike `ru_maxrss`, it does not include the peak of the parent process.
    """
    found = re.search(r"^VmHWM:\s*(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert found is not None, f"{STATUS} has no VmHWM"
    return int(found[1]) / 2**20


def memory_problems(seed: int, before: float = 0.0) -> Iterator[tuple[int, str, str]]:
    """Yields (seed, kind, problem) if this program has used more than `MOST` GiB.

    Args:
        seed: the last one.
        before: the peak before the first one, that of other tests of this process.
    """
    peak = peak_gibibytes()
    if peak > max(MOST, before):
        yield seed, "all", f"{peak:.1f} GiB of memory"
