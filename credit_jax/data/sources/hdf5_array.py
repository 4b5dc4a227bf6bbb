"""Variables of local NetCDF-4 files, read directly by h5py, with a single copy.

h5netcdf looks up the sizes of all dims at each read, which takes several times as long
as reading a small field.
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
from credit_jax.io.missing_chunks import Chunks


class Hdf5Array:
    """A variable of a file; reads are thread-safe.

    Args:
        file: xarray's manager of the file, which reopens it if xarray, which keeps 128
            files open, has closed it.
        name: name of the variable.
    """

    def __init__(self, file: CachingFileManager, name: str) -> None:
        self._file = file
        self._name = name
        self._chunks: Chunks | None = None

    def __getitem__(self, index: tuple[Any, ...]) -> Shaped[np.ndarray, "..."]:
        """Reads values by outer indexing: a slice or a list of indices for each dim.

        Raises:
            OSError: a chunk is damaged.
            ValueError: a chunk was never written, and has no value.
        """
        # Any read through xarray may close a file; xarray takes this lock, too.
        with HDF5_LOCK:
            dataset = self._file.acquire(needs_lock=False)[self._name]
            if self._chunks is None:
                self._chunks = Chunks(dataset)
            self._chunks.check(dataset, index)
            return _read(dataset, index)


def _read(dataset: h5py.Dataset, index: tuple[Any, ...]) -> Shaped[np.ndarray, "..."]:
    sizes = zip(dataset.shape, index, strict=True)
    positions = [
        np.arange(*indices.indices(size))
        if isinstance(indices, slice)
        else np.arange(size)[indices]
        for size, indices in sizes
    ]
    stored = _readable([np.unique(indices) for indices in positions])
    shape = tuple(map(len, stored))
    out = BUFFERS.empty(shape, dataset.dtype)
    if out.size:
        dataset.read_direct(out, tuple(map(_selection, stored)))
    for dim, (indices, read) in enumerate(zip(positions, stored, strict=True)):
        if not np.array_equal(indices, read):
            out = np.take(out, np.searchsorted(read, indices), dim)
    return out


def open_hdf5_array(
    file: str, name: str, variable: xr.Variable, owner: object
) -> Hdf5Array | None:
    """Opens a variable of a file; None if xarray has to read it.

    Args:
        file: path of the file.
        name: name of the variable.
        variable: xarray's variable; xarray reads those that need decoding.
        owner: an object that lives as long as the array; arrays with the same owner
            share an open file.
    """
    if not (os.path.isfile(file) and h5py.is_hdf5(file) and is_plain(variable)):
        return None
    manager = CachingFileManager(h5py.File, file, mode="r", manager_id=id(owner))
    with HDF5_LOCK:
        stored = manager.acquire(needs_lock=False).get(name)
        if not isinstance(stored, h5py.Dataset):
            return None
        # A variable may be shorter than the unlimited dim that it is along.
        same = stored.shape == variable.shape and stored.dtype == variable.dtype
    return Hdf5Array(manager, name) if same else None


def _readable(positions: list[np.ndarray]) -> list[np.ndarray]:
    """Indices to read: h5py accepts a list for one dim; others become ranges."""
    lists = [dim for dim, indices in enumerate(positions) if not _is_regular(indices)]
    widened = {
        dim: np.arange(positions[dim][0], positions[dim][-1] + 1) for dim in lists[1:]
    }
    return [widened.get(dim, indices) for dim, indices in enumerate(positions)]


def _selection(positions: np.ndarray) -> slice | list[int]:
    """Increasing indices for h5py, as a slice if possible, which is much faster."""
    if not _is_regular(positions):
        return positions.tolist()
    step = int(positions[1] - positions[0]) if len(positions) > 1 else 1
    return slice(int(positions[0]), int(positions[-1]) + 1, step)


def _is_regular(positions: np.ndarray) -> bool:
    return len(np.unique(np.diff(positions))) <= 1
