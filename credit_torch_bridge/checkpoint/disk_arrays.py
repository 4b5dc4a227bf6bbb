"""Arrays backed by files, for conversions larger than memory."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

# # Size in bytes from which arrays are on disk.
MIN_ON_DISK = 1 << 20


class DiskArray(np.ndarray):
    """A memory-mapped array; `deepcopy`, which Orbax calls, does not copy it."""

    def __deepcopy__(self, memo: dict[int, Any] | None) -> DiskArray:
        return self


class DiskArrays:
    """Allocates arrays in a temporary folder, removed when the block ends.

    The operating system writes their pages to disk when memory is short, so a
    conversion needs memory only for the arrays in use.

    Args:
        parent: folder in which the temporary one is created.
    """

    def __init__(self, parent: Path) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=parent, prefix=".arrays-"))
        self._count = 0

    def __enter__(self) -> DiskArrays:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Returns an uninitialized array; below `MIN_ON_DISK` bytes it is in memory."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if size < MIN_ON_DISK:
            return np.empty(shape, dtype)
        self._count += 1
        path = self.folder / str(self._count)
        mapped = np.memmap(path, dtype=dtype, mode="w+", shape=tuple(shape))
        return mapped.view(DiskArray)
