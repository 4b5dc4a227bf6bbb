"""One run at a time in a folder."""

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
def folder_lock(folder: Path) -> Iterator[None]:
    """Holds a folder while the block runs; the system frees it if the process dies.

    The lock is one of the file system (`flock`), on network file systems of all hosts
    that mount it. Where a file system has none, nothing is held.

    Args:
        folder: that exists.

    Raises:
        ValueError: another process holds it; names that process.
    """
    path = folder / NAME
    file = _taken(path)
    if file is None:
        yield
        return
    with file:
        since = datetime.datetime.now(datetime.UTC)
        file.write(
            f"process {os.getpid()} on {socket.gethostname()} since "
            f"{since:%Y-%m-%d %H:%M} UTC"
        )
        file.flush()
        try:
            yield
        finally:
            # What remains where that is not permitted any more is free: see `_taken`.
            with suppress(OSError):
                path.unlink()


def _taken(path: Path) -> IO[str] | None:
    """The open file that is locked; None where the file system has no locks."""
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
        # The holder before may have removed the file between the two calls.
        if path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
            file.seek(0)
            file.truncate()
            return file
        file.close()
