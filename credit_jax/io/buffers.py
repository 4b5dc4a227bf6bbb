"""A pool of memory for large numpy arrays.

The kernel clears each page of fresh memory when it is first touched, which takes longer
than reading a field into pages that are already mapped. Arrays of fields and of batches
have few distinct sizes, so a new array can mostly reuse the memory of an earlier one.
"""

from __future__ import annotations

import math
import queue
import threading
from typing import Any

import numpy as np
from jaxtyping import Shaped

# Bytes; for smaller arrays the C library reuses memory by itself.
_SMALLEST = 2**20


class Buffers:
    """Allocates numpy arrays, and reuses their memory once no array refers to it."""

    def __init__(self) -> None:
        self._free: list[np.ndarray] = []
        self._used = self._peak = 0  # bytes
        self._lock = threading.Lock()
        # `_Lease.__del__` may run in a garbage collection within `empty`, which has the
        # lock: it must put memory back without it.
        self._returned: queue.SimpleQueue[np.ndarray] = queue.SimpleQueue()

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Shaped[np.ndarray, ...]:
        """Returns an uninitialized array, as `numpy.empty` does."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size < _SMALLEST:
            return np.empty(shape, dtype)
        with self._lock:
            while not self._returned.empty():
                self._free.append(self._returned.get())
                self._used -= self._free[-1].nbytes
            memory = next((m for m in reversed(self._free) if m.nbytes == size), None)
            self._free = [other for other in self._free if other is not memory]
            self._used += size
            # Never more memory than arrays have used at once is held, so that what is
            # in flight stays, whatever the number of threads that read.
            self._peak = max(self._peak, self._used)
            # The oldest memory above the peak is dropped.
            left = self._peak - self._used - sum(m.nbytes for m in self._free)
            while left < 0:
                left += self._free.pop(0).nbytes
        if memory is None:
            memory = np.empty(size, np.uint8)
        return np.asarray(_Lease(memory, shape, np.dtype(dtype), self._returned))


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


# Shared by all readers and loaders, whose arrays have the same sizes.
BUFFERS = Buffers()
