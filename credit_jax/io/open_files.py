"""Opens NetCDF files and Zarr stores with a thread-safe engine, each only once."""

from __future__ import annotations

import collections
import functools
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xarray as xr

from credit_jax.io.icechunk import is_repository, session_at
from credit_jax.io.metadata import check_file, check_group, check_variables
from credit_jax.io.remote import is_url, open_binary, store_at
from credit_jax.io.retry import is_transient, retried

# Data sets that stay open.
MAX_OPEN = 1000
_HDF5 = b"\x89HDF\r\n\x1a\n"
_CLASSIC = (b"CDF\x01", b"CDF\x02")
# First bytes of files that are something else -> what that is, and what to do.
_OTHERS = {
    b"GRIB": "GRIB; write it as NetCDF: xarray.open_dataset(PATH, engine='cfgrib')"
    ".to_netcdf(NEW_PATH)",
    b"PK\x03\x04": "a zip archive; unpack it",
    b"\x1f\x8b": "compressed by gzip; unpack it with gunzip",
}


def reading_engine(path: str | Path) -> str | None:
    """Returns the xarray engine that reads a file from any thread, None for a guess."""
    # The netCDF C library is not thread-safe: a read concurrent with another read, or
    # with writing or closing any other file, can crash the process. NetCDF-4 files are
    # HDF5 and are read by h5netcdf, which takes h5py's lock; classic ones by scipy.
    if is_url(path) and str(path).endswith(".nc") and not is_repository(path):
        return "h5netcdf"
    if is_url(path) or os.path.isdir(path):
        return "zarr"
    if _starts_with(path, _HDF5):
        return "h5netcdf"
    return "scipy" if _starts_with(path, *_CLASSIC) else None


def _starts_with(path: str | Path, *signatures: bytes) -> bool:
    """Whether a file can be read and begins with one of some bytes."""
    try:
        with open(path, "rb") as file:
            return file.read(max(map(len, signatures))).startswith(signatures)
    except OSError:
        return False


class OpenFiles:
    """A thread-safe cache of open data sets, one for all readers of a run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._datasets: collections.OrderedDict = collections.OrderedDict()

    def dataset(self, path: str | Path, engine: str | None = None) -> xr.Dataset:
        """Opens a file, or returns it from the cache; arrays are not read."""
        key = os.fspath(path), engine
        with self._lock:
            if key not in self._datasets:
                read = functools.partial(open_dataset, *key)
                self._datasets[key] = retried(read, key[0])
            self._datasets.move_to_end(key)
            while len(self._datasets) > MAX_OPEN:
                self._datasets.popitem(last=False)
            return self._datasets[key]


@contextmanager
def opened(path: str | Path, **options: Any) -> Iterator[xr.Dataset]:
    """Opens a file whose values are read in the block; every error names the file."""
    with _named(os.fspath(path)), open_dataset(path, **options) as dataset:
        yield dataset


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Turns what libraries raise for files that are no data into one ValueError."""
    try:
        yield
    except Exception as error:
        if not (is_url(path) or os.path.lexists(path)):
            raise  # there is no such file
        reason = str(error).partition("\n")[0].partition(". Consider ")[0]
        if is_transient(error.__cause__ or error) or reason.startswith(path):
            raise
        for signature, other in _OTHERS.items():
            if not is_url(path) and _starts_with(path, signature):
                raise ValueError(
                    f"{path}: expected NetCDF or Zarr, got {other}"
                ) from error
        raise ValueError(
            f"{path}: cannot be opened as NetCDF or Zarr ({type(error).__name__}: "
            f"{reason}); is it complete?"
        ) from error


def open_dataset(
    path: str | Path, engine: str | None = None, **options: Any
) -> xr.Dataset:
    """Opens a file whose metadata have been checked; arrays are not read."""
    path, location = os.fspath(path), None
    if is_url(path):
        engine = reading_engine(path)
        location = _remote(path, engine)
    with _named(path), warnings.catch_warnings():
        # Zarr 3 has no consolidated metadata. Times that datetime64 cannot hold
        # become cftime objects; whoever reads them raises the error.
        warnings.filterwarnings("ignore", "Failed to open Zarr store with")
        warnings.filterwarnings("ignore", "Unable to decode time axis")
        if location is None:
            check_file(path)
            engine = engine or reading_engine(path)
        if engine == "zarr":
            source = open_group(path, location).store
        elif engine == "h5netcdf":
            from credit_jax.io.missing_chunks import WrittenStore

            source = WrittenStore.open(location or path, phony_dims="access")
        else:
            source = path
        dataset = xr.open_dataset(
            source,
            engine=None if engine == "h5netcdf" else engine,
            cache=False,
            create_default_indexes=False,
            **options,
        )
        check_variables(path, dataset.variables)
        if not dataset.data_vars and not is_url(path):
            tree = xr.open_groups(path, engine=engine)
            if groups := [name for name, each in tree.items() if each.data_vars]:
                raise ValueError(
                    f"{path}: expected variables, got groups of them, "
                    f"{', '.join(groups)}; write those of a group to a file of their "
                    "own: xarray.open_dataset(PATH, group=GROUP).to_netcdf(NEW_PATH)"
                )
        for name, coordinate in dataset.coords.items():
            if coordinate.dims == (name,):
                dataset = dataset.set_xindex([name])
    return dataset


def open_group(path: str, location: Any = None) -> Any:
    """Opens the group of a Zarr store, which need not be a data set of xarray."""
    import zarr
    from zarr.storage import LocalStore

    # Values that are not there are errors.
    from credit_jax.io.missing_chunks import CompleteStore

    with _named(path):
        if is_url(path):
            location = location or _remote(path, "zarr")
        else:
            check_file(path)
            location = LocalStore(path, read_only=True)
        group = zarr.open_group(CompleteStore(location), mode="r")
        check_group(path, group)
        return group


def _remote(url: str, engine: str | None) -> Any:
    """What xarray opens for a URL: a file object (NetCDF) or a Zarr store."""
    if is_repository(url):
        return session_at(url).store
    if engine == "h5netcdf":
        return open_binary(url)
    from zarr.storage import ObjectStore

    return ObjectStore(store_at(url), read_only=True)
