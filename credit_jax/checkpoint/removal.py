"""Removes old checkpoints in the background, none of which is ever incomplete."""

from __future__ import annotations

import shutil
import threading
from contextlib import suppress
from pathlib import Path

import jax

# Name of the folder, beside the checkpoints.
REMOVED = "removed"


class RemovedCheckpoints:
    """The folder that old checkpoints are renamed into before files are removed.

    Args:
        folder: of the checkpoints.
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
