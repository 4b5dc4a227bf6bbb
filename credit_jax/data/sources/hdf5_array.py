"""Variables of local NetCDF-4 files, read by h5py itself: one copy.

h5netcdf looks up the sizes of all dims in the file at each read, which takes several
times as long as a small field.
"""

import os
from typing import Any

import h5py
import numpy as np
import xarray as xr
from jaxtyping import Shaped
from xarray.backends import CachingFileManager
from xarray.backends.locks import HDF5_LOCK

from credit_jax.data.sources.encoding import is_plain
from credit_jax.io.buffers import BUFFERS


class Hdf5Array:
    """A variable of a file; reads are thread-safe.

    Args:
        file: opens the file again where xarray has closed it, which keeps 128 open.
        name: of the variable.
    """

    def __init__(self, file: CachingFileManager, name: str) -> None:
        self._file = file
        self._name = name

    def __getitem__(self, index: tuple[Any, ...]) -> Shaped[np.ndarray, "..."]:
        """Values at slices and lists of positions, one for each dim (outer indexing).

        Raises:
            OSError: a chunk is damaged.
        """
        # Any read through xarray may close a file; it holds this lock, too.
        with HDF5_LOCK:
            dataset = self._file.acquire(needs_lock=False)[self._name]
            return _read(dataset, index)


def _read(dataset: h5py.Dataset, index: tuple[Any, ...]) -> Shaped[np.ndarray, "..."]:
    sizes = zip(dataset.shape, index, strict=True)
    positions = [np.arange(size)[own] for size, own in sizes]
    stored = _readable([np.unique(own) for own in positions])
    shape = tuple(map(len, stored))
    out = BUFFERS.empty(shape, dataset.dtype)
    if out.size:
        dataset.read_direct(out, tuple(map(_selection, stored)))
    for dim, (own, read) in enumerate(zip(positions, stored, strict=True)):
        if not np.array_equal(own, read):
            out = np.take(out, np.searchsorted(read, own), dim)
    return out


def open_hdf5_array(
    file: str, name: str, variable: xr.Variable, owner: object
) -> Hdf5Array | None:
    """A variable of a file; None where xarray has to read it.

    Args:
        file: path that was opened.
        name: of the variable.
        variable: as xarray has it: values that are decoded are left to it.
        owner: lives as long as the array; the arrays of one share an open file.
    """
    if not (os.path.isfile(file) and h5py.is_hdf5(file) and is_plain(variable)):
        return None
    manager = CachingFileManager(h5py.File, file, mode="r", manager_id=id(owner))
    with HDF5_LOCK:
        found = manager.acquire(needs_lock=False).get(name)
        if not isinstance(found, h5py.Dataset):
            return None
        # A variable along an unlimited dim may hold fewer values than that is long.
        same = found.shape == variable.shape and found.dtype == variable.dtype
    return Hdf5Array(manager, name) if same else None


def _readable(positions: list[np.ndarray]) -> list[np.ndarray]:
    """What is read: h5py takes a list of one dim; others are widened to a range."""
    lists = [dim for dim, own in enumerate(positions) if not _is_regular(own)]
    widened = {
        dim: np.arange(positions[dim][0], positions[dim][-1] + 1) for dim in lists[1:]
    }
    return [widened.get(dim, own) for dim, own in enumerate(positions)]


def _selection(positions: np.ndarray) -> slice | list[int]:
    """Increasing positions as h5py takes them, which reads slices much faster."""
    if not _is_regular(positions):
        return positions.tolist()
    step = int(positions[1] - positions[0]) if len(positions) > 1 else 1
    return slice(int(positions[0]), int(positions[-1]) + 1, step)


def _is_regular(positions: np.ndarray) -> bool:
    return len(np.unique(np.diff(positions))) <= 1
