"""A lock that lets only one run at a time use a folder; whether a process runs."""

from __future__ import annotations

import datetime
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

NAME = ".lock"


@contextmanager
def folder_lock(folder: Path) -> Iterator[bool]:
    """Locks a folder while the block runs; yields False where the system cannot."""
    path = folder / NAME
    # `flock`, on network file systems for all hosts; a process that dies unlocks it.
    file = _taken(path)
    if file is None:
        yield False
        return
    with file:
        since = datetime.datetime.now(datetime.UTC)
        file.write(
            f"process {os.getpid()} on {socket.gethostname()} since "
            f"{since:%Y-%m-%d %H:%M} UTC"
        )
        file.flush()
        try:
            yield True
        finally:
            # A file that cannot be removed is unlocked nevertheless: see `_taken`.
            with suppress(OSError):
                path.unlink()


def _taken(path: Path) -> IO[str] | None:
    """Opens and locks a file; None where the file system has no locks."""
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                file.seek(0)
                holder = file.read() or "another process"
            raise ValueError(
                f"{path.parent}: a run is going on in this folder ({holder}); wait for "
                "its end, or give another folder (--save-loc DIR)"
            ) from None
        except OSError:
            file.close()
            return None
        # The previous owner may have removed the file between `open` and `flock`.
        if path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
            file.seek(0)
            file.truncate()
            return file
        file.close()


def is_running(process: int) -> bool:
    """Whether another process of this host has that ID."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return process != os.getpid()
