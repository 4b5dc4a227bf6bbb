"""Runs items of a part, one after another, in a process of its own.

    python -m benchmarks.gpu.child PART SETTING ITEM ...

It ends at the first item that fails, as the device or its memory may be unusable then;
`benchmarks.gpu` starts another process for the others.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu import records
from benchmarks.gpu.records import Setting
from credit_jax.parallel.compiler import compile_sooner

# Characters of an error that are worth keeping.
_TAIL = 3000


@dataclass
class _Progress:
    """The record of one item while it runs.

    Attributes:
        out, part, item: folder, part and item of the record.
        result: as far as there is one.
    """

    out: Path
    part: str
    item: str
    result: Any = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def keep(self, result: Any) -> None:
        """Writes what is known so far."""
        self.result = result
        self.write(records.RUNNING)

    def write(self, status: str, **more: str) -> None:
        """Writes the record."""
        seconds = round(time.monotonic() - self.began, 1)
        record = {
            "status": status,
            "seconds": seconds,
            "process": os.getpid(),
            "result": self.result,
            **more,
        }
        records.write(self.out, self.part, self.item, record)


def main(part: str, setting: str, *items: str) -> int:
    """Runs the items; returns 1 if one failed."""
    # As the commands do.
    compile_sooner()
    options = json.loads(setting)
    parsed = Setting(**{**options, "out": Path(options["out"])})
    module = importlib.import_module(f"benchmarks.gpu.{part}")
    for item in items:
        progress = _Progress(parsed.out, part, item)
        progress.write(records.RUNNING)
        try:
            progress.keep(module.run(item, parsed, progress.keep))
        except Exception as error:
            text = traceback.format_exc()
            print(text, flush=True)
            short = f"{type(error).__name__}: {error}"[:_TAIL]
            progress.write(records.FAILED, error=short, traceback=text[-_TAIL:])
            return 1
        progress.write(records.DONE)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
