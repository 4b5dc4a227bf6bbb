"""A pytest plugin that clears JAX's compilation caches when memory runs high.

JAX keeps every program that a process has compiled, here those of thousands of tests.
`tests/conftest.py` loads this plugin.
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
    """Drops programs after the last test of a file; others compile their own."""
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
    """Returns freed memory to the system, which glibc does only on `malloc_trim`."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def resident() -> float:
    """Returns the resident memory of this process in bytes, or 0 outside Linux."""
    if not STATM.exists():
        return 0.0
    return float(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
