"""Writes and reads Orbax checkpoints array by array, to limit memory.

Orbax writes and reads all arrays of a checkpoint concurrently, so that all of them are
in memory. This module writes arrays on disk (`disk_arrays`) one after the other, and
reads arrays in groups of limited size.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jaxtyping import PyTree

from credit_jax.checkpoint.manager import register_handler
from credit_jax.state_dict.key_map import Allocate
from credit_torch_bridge.checkpoint.disk_arrays import DiskArray

# Number of bytes that are read at a time.
PART = 1 << 25

_handlers = ocp.type_handlers


class _OneByOne(_handlers.NumpyHandler):
    """Orbax's handler of numpy arrays, but writes `DiskArray`s one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._turns: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()

    async def _open_and_write(
        self, value: np.ndarray, tspec: dict[str, Any], ts_context: Any
    ) -> None:
        if not isinstance(value, DiskArray):
            await super()._open_and_write(value, tspec, ts_context)
            return
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with turn:
            await super()._open_and_write(value, tspec, ts_context)


@contextlib.contextmanager
def one_by_one() -> Iterator[None]:
    """Context manager in which Orbax writes `DiskArray`s one after the other."""
    before = _handlers.get_type_handler(np.ndarray)
    register_handler(np.ndarray, _OneByOne())
    try:
        yield
    finally:
        register_handler(np.ndarray, before)


def read_item(
    folder: Path, shapes: Mapping[str, Any], allocate: Allocate
) -> dict[str, Any]:
    """Reads the arrays of one item of a checkpoint.

    Args:
        folder: folder of the item.
        shapes: nested dicts of host arrays or shapes, like the saved item.
        allocate: makes the arrays that are filled.
    """
    handler = ocp.PyTreeCheckpointHandler()
    content: dict[str, Any] = {}
    for part in _parts(_leaves(shapes, ())):
        tree: dict[str, Any] = {}
        for path, leaf in part.items():
            _place(tree, path, leaf)
        restored = handler.restore(epath.Path(folder), args=_host_arrays(tree))
        for path, leaf in _leaves(restored, ()).items():
            target = allocate(leaf.shape, leaf.dtype)
            target[...] = leaf
            _place(content, path, target)
    return _filled_out(shapes, content)


def _host_arrays(tree: PyTree) -> Any:
    arguments = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    return ocp.args.PyTreeRestore(
        item=tree, restore_args=arguments, partial_restore=True
    )


def _leaves(tree: Any, path: tuple[str, ...]) -> dict[tuple[str, ...], Any]:
    if not isinstance(tree, Mapping):
        return {path: tree}
    leaves: dict[tuple[str, ...], Any] = {}
    for name, branch in tree.items():
        leaves |= _leaves(branch, (*path, name))
    return leaves


def _parts(leaves: Mapping[tuple[str, ...], Any]) -> Iterator[dict[Any, Any]]:
    """The leaves in groups of about `PART` bytes."""
    part: dict[Any, Any] = {}
    size = 0
    for path, leaf in leaves.items():
        size += math.prod(leaf.shape) * leaf.dtype.itemsize
        part[path] = leaf
        if size >= PART:
            yield part
            part, size = {}, 0
    if part:
        yield part


def _place(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _filled_out(
    shapes: Mapping[str, Any], content: Mapping[str, Any]
) -> dict[str, Any]:
    """`content` in the order of `shapes`, empty dicts included."""
    return {
        name: _filled_out(branch, content.get(name, {}))
        if isinstance(branch, Mapping)
        else content[name]
        for name, branch in shapes.items()
    }
