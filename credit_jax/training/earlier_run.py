"""The work of an earlier run in `save_loc`: never written over, moved aside whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from credit_jax.checkpoint.store import FOLDER as CHECKPOINTS
from credit_jax.io.folder_lock import NAME as LOCK
from credit_jax.training.loggers import LOG_NAME
from credit_jax.training.records import RECORDS_NAME

_PREFIX, _MOVING = "earlier_", ".moving"
# Scripts and logs of `submit`, which run now, and compiled programs: of no single run.
_SHARED = ("jobs", "cache", LOCK)


def refuse_earlier_run(folder: Path) -> None:
    """Checks that a run which begins in a folder finds no work of another one there.

    Args:
        folder: folder of the run.

    Raises:
        ValueError: there are checkpoints, of CREDIT too, or logs with rows.
    """
    if work := ", ".join(_work_in(folder)):
        raise ValueError(
            f"{folder} holds an earlier run ({work}): --resume goes on with it, "
            "--fresh moves it to a dated folder in there and begins anew, and "
            "--save-loc DIR takes another folder"
        )


def move_earlier_run(folder: Path) -> Path | None:
    """Moves all that an earlier run has left in a folder to a new dated folder in it.

    A move that was interrupted is ended first (`end_interrupted_move`), so that the
    parts of a run stay together.

    Args:
        folder: folder of the run; `jobs` and `cache`, and what was moved before, stay.

    Returns:
        The dated folder; None if there was nothing to move.
    """
    end_interrupted_move(folder)
    if not _entries(folder):
        return None
    moving = folder / f"{_PREFIX}{datetime.now(UTC):%Y%m%d_%H%M%S}{_MOVING}"
    moving.mkdir()
    return _move_into(moving)


def end_interrupted_move(folder: Path) -> None:
    """Moves the rest where a process was killed within `move_earlier_run`."""
    for moving in sorted(folder.glob(f"{_PREFIX}*{_MOVING}")):
        _move_into(moving)


def _move_into(moving: Path) -> Path:
    # The checkpoints last: without them a run would begin anew among the other files.
    for entry in sorted(_entries(moving.parent), key=lambda e: e.name == CHECKPOINTS):
        os.rename(entry, moving / entry.name)
    target = moving.with_suffix("")
    while target.exists():
        target = target.with_name(f"{target.name}_")
    return moving.rename(target)


def _entries(folder: Path) -> list[Path]:
    return [
        entry
        for entry in folder.iterdir()
        if entry.name not in _SHARED and not entry.name.startswith(_PREFIX)
    ]


def _work_in(folder: Path) -> Iterator[str]:
    """Names what was worked for: checkpoints, and logs with rows."""
    checkpoints = folder / CHECKPOINTS
    if checkpoints.is_dir() and any(p.name.isdigit() for p in checkpoints.iterdir()):
        yield CHECKPOINTS
    yield from sorted(path.name for path in folder.glob("*checkpoint*.pt"))
    if (folder / LOG_NAME).exists():
        yield LOG_NAME
    if _has_updates(folder / RECORDS_NAME):
        yield RECORDS_NAME


def _has_updates(path: Path) -> bool:
    """Whether a file of records has one of an update; a start alone is no work."""
    if not path.is_file():
        return False
    with path.open(errors="replace") as file:
        return any('"event": "start"' not in line for line in file)
