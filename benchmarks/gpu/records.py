"""What is known about each item of each part: one small file for each.

A file is replaced as a whole, so that it is complete whenever a process is stopped.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUNNING, DONE, FAILED = "running", "done", "failed"
# The process ended without a word, or was stopped at its time limit.
CRASHED, STOPPED = "crashed", "stopped"

Record = dict[str, Any]
# Results of the items of a part by name, as far as there are any.
Results = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Setting:
    """What the items of all parts depend on.

    Attributes:
        out: folder of the records and results.
        rehearse: whether to run at the smallest size, on whatever device there is.
        size: size of the model that is timed, of `benchmarks.speed.cases.SIZES`.
        dtype: dtype of its forward and backward pass.
    """

    out: Path
    rehearse: bool = False
    size: str = "025deg"
    dtype: str = "bfloat16"

    @property
    def scratch(self) -> Path:
        """Folder of data and outputs that are not results."""
        return self.out / "scratch"


def path_of(out: Path, part: str, item: str) -> Path:
    """Returns the file of an item."""
    name = re.sub(r"[^\w.]+", "-", item)
    return out / "items" / part / f"{name}.json"


def read(out: Path, part: str, item: str) -> Record | None:
    """Returns the record of an item; None if it was never begun."""
    path = path_of(out, part, item)
    return json.loads(path.read_text()) if path.exists() else None


def write(out: Path, part: str, item: str, record: Mapping[str, Any]) -> None:
    """Replaces the record of an item."""
    data = {"item": item, **record}
    replace(path_of(out, part, item), json.dumps(data, indent=1, default=str) + "\n")


def replace(path: Path, text: str) -> None:
    """Writes a file so that it is there as a whole or as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text)
    new.replace(path)
