"""A plugin of pytest: compiled programs are dropped where they take much memory.

JAX keeps every program that a process has compiled, those of thousands of tests.
tests/conftest.py loads it.
"""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

import jax
import pytest

LIMIT = 5e9  # bytes of memory in use
STEP = 1e9  # bytes more than after the last time
STATM = Path("/proc/self/statm")

_after_last_time = 0.0


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last test of a file, where the next file compiles its own programs."""
    if nextitem is not None and nextitem.path != item.path:
        drop_programs()


def drop_programs() -> None:
    """Clears JAX's caches above `LIMIT`, and again when memory grew by `STEP`."""
    global _after_last_time
    if resident() > max(LIMIT, _after_last_time + STEP):
        jax.clear_caches()
        gc.collect()
        return_freed_memory()
        _after_last_time = resident()


def return_freed_memory() -> None:
    """Hands what was freed back to the system, which glibc does only when asked."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident() -> float:
    """Bytes of memory that this process has in use; 0 where Linux does not say."""
    if not STATM.exists():
        return 0.0
    return float(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
