"""Arrays backed by files, for conversions larger than memory."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

# Bytes.
MIN_ON_DISK = 1 << 20


class DiskArray(np.ndarray):
    """An array in a file of its own; `deepcopy`, which Orbax calls, copies nothing."""

    def __deepcopy__(self, memo: dict[int, Any] | None) -> DiskArray:
        return self


class DiskArrays:
    """Allocates arrays in a temporary folder, removed when the block ends.

    The system writes their pages to disk when memory is short, so that a conversion
    needs memory for the arrays that it works on, and not for those that it has
    finished.

    Args:
        parent: folder in which the temporary one is made.
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
