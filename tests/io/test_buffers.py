"""Reuse of the memory of large arrays."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
import pytest

from credit_jax.io import buffers
from credit_jax.io.buffers import Buffers

SHAPE = (3, 1 << 18)


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_when_nothing_refers_to_it() -> None:
    made = Buffers()
    first = made.empty(SHAPE, np.float32)
    assert first.shape == SHAPE
    assert first.dtype == np.float32
    first[...] = 0.0
    assert first.flags.c_contiguous
    place = address(first)
    view = first.reshape(-1)[5:].view(np.int32)[None]
    del first
    other = made.empty(SHAPE, np.float32)
    assert address(other) != place, "a view refers to it"
    del view
    assert address(made.empty((SHAPE[1], 3), np.int32)) == place, "of the same size"
    assert address(other) != place


def test_an_array_on_a_device_keeps_its_memory() -> None:
    """JAX on CPU may share the memory of the host array."""
    made = Buffers()
    host = made.empty(SHAPE, np.float32)
    host[...] = 1.0
    placed = jax.device_put(host)
    del host
    for _ in range(3):
        made.empty(SHAPE, np.float32)[...] = 2.0
    assert np.all(np.asarray(placed) == 1.0)


def test_no_more_is_held_than_was_used_at_once(monkeypatch: Any) -> None:
    sizes = []
    allocate = np.empty

    def empty(shape: Any, dtype: Any) -> np.ndarray:
        sizes.append(shape)
        return allocate(shape, dtype)

    monkeypatch.setattr(buffers.np, "empty", empty)
    size = 4 * SHAPE[0] * SHAPE[1]
    made = Buffers()
    for _ in range(3):
        arrays = [made.empty(SHAPE, np.float32) for _ in range(4)]
        assert sizes == [size] * 4, "all of them are used again"
        del arrays
        gc.collect()
    large = made.empty((3, *SHAPE), np.float32)
    assert made._used + sum(m.nbytes for m in made._free) == 4 * size
    assert len(made._free) == 1, "three made way for an array of their size"
    del large


@pytest.mark.parametrize("shape", [(), (0,), (7, 9)])
def test_small_arrays_are_plain(shape: tuple[int, ...]) -> None:
    array = Buffers().empty(shape, np.float64)
    assert array.shape == shape
    assert array.base is None


def test_threads_never_share_memory() -> None:
    made = Buffers()

    def work(number: int) -> bool:
        for _ in range(30):
            array = made.empty(SHAPE, np.float32)
            array[...] = number
            if not (array[::2, ::4096] == number).all():
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))
