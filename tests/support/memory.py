"""The most memory that a process has used."""

import re
from pathlib import Path

STATUS = Path("/proc/self/status")


def peak_gibibytes() -> float:
    """The peak of this program, of Linux, in GiB.

    Unlike `ru_maxrss`, which a program takes over from the process that started it,
    however large that was.
    """
    found = re.search(r"^VmHWM:\s*(\d+) kB$", STATUS.read_text(), re.MULTILINE)
    assert found is not None, f"{STATUS} has no VmHWM"
    return int(found[1]) / 2**20
