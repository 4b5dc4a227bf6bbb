"""The work of an earlier run in `save_loc`: never written over, moved aside whole."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from credit_jax.checkpoint.store import FOLDER as CHECKPOINTS
from credit_jax.config.load import CONFIG_NAME
from credit_jax.io.folder_lock import NAME as LOCK
from credit_jax.training.loggers import LOG_NAME
from credit_jax.training.records import RECORDS_NAME

_PREFIX, _MOVING = "earlier_", ".moving"
# Scripts and logs of `submit`, which run now, and compiled programs: of no single run.
_SHARED = ("jobs", "cache", LOCK)
# What is of a run whatever reads it, and keys of configs that name what is written.
_RUN = (CHECKPOINTS, CONFIG_NAME, LOG_NAME, RECORDS_NAME)
_OUTPUTS = ("save_loc", "save_forecast")


def refuse_earlier_run(folder: Path) -> None:
    """Checks that a run which begins in a folder finds no work of another one there."""
    # Checkpoints, and logs with rows: of records a start alone is no work.
    checkpoints, records = folder / CHECKPOINTS, folder / RECORDS_NAME
    work = sorted(path.name for path in folder.glob("*checkpoint*.pt"))
    if checkpoints.is_dir() and any(p.name.isdigit() for p in checkpoints.iterdir()):
        work.insert(0, CHECKPOINTS)
    work += [LOG_NAME] if (folder / LOG_NAME).exists() else []
    if records.is_file():
        with records.open(errors="replace") as file:
            if any('"event": "start"' not in line for line in file):
                work.append(RECORDS_NAME)
    if work:
        raise ValueError(
            f"{folder} holds an earlier run ({', '.join(work)}): --resume goes on with "
            "it, --fresh moves it to a dated folder in there and begins anew, and "
            "--save-loc DIR takes another folder"
        )


def files_of(config: Mapping[str, Any], source: str) -> tuple[str, ...]:
    """Paths that a run reads: those that its config names, and that of the config."""
    return source, *_texts(config)


def move_earlier_run(folder: Path, reads: Sequence[str] = ()) -> Path | None:
    """Moves what an earlier run left in a folder, if any, to a dated folder in it."""
    # So that the parts of a run stay together.
    end_interrupted_move(folder, reads)
    if not _entries(folder, reads):
        return None
    moving = folder / f"{_PREFIX}{datetime.now(UTC):%Y%m%d_%H%M%S}{_MOVING}"
    moving.mkdir()
    return _move_into(moving, reads)


def end_interrupted_move(folder: Path, reads: Sequence[str] = ()) -> None:
    """Moves the rest where a process was killed within `move_earlier_run`."""
    for moving in sorted(folder.glob(f"{_PREFIX}*{_MOVING}")):
        _move_into(moving, reads)


def _move_into(moving: Path, reads: Sequence[str]) -> Path:
    # The checkpoints last: without them a run would begin anew among the other files.
    entries = _entries(moving.parent, reads)
    for entry in sorted(entries, key=lambda e: e.name == CHECKPOINTS):
        os.rename(entry, moving / entry.name)
    target = moving.with_suffix("")
    while target.exists():
        target = target.with_name(f"{target.name}_")
    return moving.rename(target)


def _entries(folder: Path, reads: Sequence[str]) -> list[Path]:
    # Patterns of the names in the folder that paths lead to; "forecast", without any
    # of / and ., may be a word in a config.
    patterns, top = [], folder.absolute()
    for path in (path for path in reads if "/" in path or "." in path):
        location = Path(os.path.abspath(Path(os.path.expandvars(path)).expanduser()))
        if location.is_relative_to(top) and location != top:
            # Dates of paths are as in strftime; more than they match may stay.
            name = location.relative_to(top).parts[0]
            patterns.append(re.sub(r"%-?[A-Za-z]", "*", name))
    return [
        entry
        for entry in folder.iterdir()
        if entry.name not in _SHARED
        and not entry.name.startswith(_PREFIX)
        and (entry.name in _RUN or not any(map(entry.match, patterns)))
    ]


def _texts(value: Any) -> Iterator[str]:
    """All texts of nested mappings and lists, but for paths of output."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in _OUTPUTS:
                yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
