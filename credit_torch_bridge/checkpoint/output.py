"""Output folders that appear complete or not at all, and arrays that live on disk."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from credit_jax.io import atomic

# Smaller arrays stay in memory.
MIN_ON_DISK = 1 << 20


@contextlib.contextmanager
def new_folder(target: str | Path) -> Iterator[Path]:
    """A folder to write into; it gets its name when the block ends without an error.

    Args:
        target: where it shall be; may be there if it is empty.

    Raises:
        FileExistsError: something is there already.
    """
    target = Path(target).absolute()
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise FileExistsError(
            f"--out {target}: there is something already; give a new folder"
        )
    with atomic.new_folder(target) as folder:
        yield folder


@contextlib.contextmanager
def writing(what: Path) -> Iterator[None]:
    """Turns what torch and Orbax raise on a full disk into an OSError."""
    try:
        yield
    except RuntimeError as error:
        raise OSError(f"{what}: could not be written: {error}") from error


class OnDisk(np.ndarray):
    """An array in a file of its own. Nobody else has it, so a copy would be waste."""

    def __deepcopy__(self, memo: dict[int, Any] | None) -> OnDisk:
        return self


class Scratch:
    """Makes arrays whose memory is a file, removed at the end.

    A conversion then needs memory for what it works on, and not for what it has made:
    the system writes the pages to disk when it needs them.
    """

    def __init__(self, parent: Path) -> None:
        """Begins a folder in `parent`, on the disk of the output."""
        self.folder = Path(tempfile.mkdtemp(dir=parent, prefix=".scratch-"))
        self._count = 0

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array to be filled; what is small is in memory."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if size < MIN_ON_DISK:
            return np.empty(shape, dtype)
        self._count += 1
        path = self.folder / str(self._count)
        mapped = np.memmap(path, dtype=dtype, mode="w+", shape=tuple(shape))
        return mapped.view(OnDisk)
