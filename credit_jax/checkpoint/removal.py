"""Removes old checkpoints in the background, none of which is incomplete or read."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import jax

# Name of the folder, beside the checkpoints.
REMOVED = "removed"
# File of a checkpoint that readers and the run that removes it lock.
DIGESTS = "digests.json"


class Pin:
    """A shared lock on a file, until it is closed or nobody holds it any more."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Unlocks the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    __del__ = close


def pin(checkpoint: Path) -> Pin | None:
    """Keeps a checkpoint from being removed by the run that saves in its folder.

    The lock is `flock`; where the file system has none, nothing is locked.

    Returns:
        What to close when the checkpoint has been read; None if it is gone.
    """
    try:
        file = Pin(descriptor := os.open(checkpoint / DIGESTS, os.O_RDONLY))
    except OSError:
        # Checkpoints of elsewhere may have no digests; no run removes them.
        return Pin(None) if checkpoint.is_dir() else None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError:
        pass
    return file if checkpoint.is_dir() else None


@contextmanager
def unpinned(checkpoints: Iterable[Path]) -> Iterator[set[Path]]:
    """Yields those of some checkpoints that nobody reads; none is pinned meanwhile."""
    with ExitStack() as stack:
        free = set[Path]()
        for checkpoint in checkpoints:
            try:
                # Network file systems lock exclusively only what is open for writing.
                file = stack.enter_context((checkpoint / DIGESTS).open("r+b"))
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            except OSError:
                pass
            free.add(checkpoint)
        yield free


class RemovedCheckpoints:
    """The folder that old checkpoints are renamed into before files are removed.

    Args:
        folder: folder of the checkpoints.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / REMOVED
        self._emptying: threading.Thread | None = None

    def clear(self) -> None:
        """Removes what a run that was killed left in it."""
        if jax.process_index() == 0:
            shutil.rmtree(self._folder, ignore_errors=True)

    def empty(self) -> None:
        """Removes the checkpoints in it, in a background thread."""
        if self._emptying:
            self._emptying.join()
        if jax.process_index() == 0 and self._folder.exists():
            self._emptying = threading.Thread(target=_empty, args=(self._folder,))
            self._emptying.start()

    def close(self) -> None:
        """Waits for the thread and removes the folder."""
        if self._emptying:
            self._emptying.join()
            with suppress(OSError):
                self._folder.rmdir()


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path, ignore_errors=True)
