"""Large arrays in memory that is used again.

The kernel clears each page of fresh memory when it is first touched, which takes longer
than a plain read of a field into pages that are there. Arrays of fields and of batches
come and go in few sizes, so that one finds the memory of an earlier one.
"""

from __future__ import annotations

import math
import queue
import threading
from typing import Any

import numpy as np
from jaxtyping import Shaped

# The C library has smaller arrays in memory that it keeps itself.
_SMALLEST = 2**20
# Memory that is kept while no array is in it.
FREE_BYTES = 2**31


class Buffers:
    """Makes arrays, and takes their memory back when nothing refers to it any more.

    Thread-safe.

    Args:
        free_bytes: largest size of the memory that is kept while no array is in it.
    """

    def __init__(self, free_bytes: int = FREE_BYTES) -> None:
        self._free_bytes = free_bytes
        self._free: list[np.ndarray] = []
        self._lock = threading.Lock()
        # A garbage collection within `empty` may put memory here: no lock is needed.
        self._returned: queue.SimpleQueue[np.ndarray] = queue.SimpleQueue()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Shaped[np.ndarray, ...]:
        """An array of arbitrary values, as of `numpy.empty`."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size < _SMALLEST:
            return np.empty(shape, dtype)
        memory = self._take(size)
        if memory is None:
            memory = np.empty(size, np.uint8)
        return np.asarray(_Lease(memory, shape, np.dtype(dtype), self._returned))

    def _take(self, size: int) -> np.ndarray | None:
        """Free memory of a size, the latest one; the oldest goes beyond the limit."""
        with self._lock:
            while not self._returned.empty():
                self._free.append(self._returned.get())
            found = next((m for m in reversed(self._free) if m.nbytes == size), None)
            self._free = [memory for memory in self._free if memory is not found]
            while sum(memory.nbytes for memory in self._free) > self._free_bytes:
                del self._free[0]
            return found


class _Lease:
    """The owner of an array's memory, which all views of the array refer to."""

    def __init__(
        self,
        memory: np.ndarray,
        shape: tuple[int, ...],
        dtype: np.dtype,
        returned: queue.SimpleQueue[np.ndarray],
    ) -> None:
        self._memory, self._returned = memory, returned
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": dtype.str,
            "data": (memory.ctypes.data, False),
        }

    def __del__(self) -> None:
        self._returned.put(self._memory)


# All readers and loaders share it: their arrays have the same sizes.
BUFFERS = Buffers()
