"""Opens NetCDF files and Zarr stores with a thread-safe engine, each only once."""

from __future__ import annotations

import collections
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xarray as xr

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
    """Returns the xarray engine that reads a file from any thread.

    The netCDF C library is not thread-safe: a read concurrent with another read, or
    with writing or closing any other file, can crash the process. NetCDF-4 files are
    HDF5 and are read by h5netcdf, which takes h5py's lock; classic ones by scipy.

    Args:
        path: a file, or the folder or the URL of a Zarr store; a URL that ends with .nc
            is taken for a NetCDF-4 file.

    Returns:
        Name of the engine; None leaves the choice to xarray.
    """
    if is_url(path) and str(path).endswith(".nc"):
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
    """A thread-safe cache of open data sets.

    All readers of a run share one instance, so that each file is opened once. Beyond
    MAX_OPEN data sets, the least recently used are dropped.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._datasets: collections.OrderedDict = collections.OrderedDict()

    def dataset(self, path: str | Path, engine: str | None = None) -> xr.Dataset:
        """Opens a file, or returns it from the cache; arrays are not read.

        Args:
            path: a file, or the folder or the URL of a Zarr store.
            engine: xarray's engine, ignored for URLs; None chooses by `reading_engine`.

        Raises:
            ValueError: it is not a complete NetCDF file or Zarr store, or obstore,
                which URLs need, is not installed.
            OSError: the storage failed at every attempt.
        """
        key = os.fspath(path), engine
        with self._lock:
            if key not in self._datasets:
                self._datasets[key] = _open(*key)
            self._datasets.move_to_end(key)
            while len(self._datasets) > MAX_OPEN:
                self._datasets.popitem(last=False)
            return self._datasets[key]


@contextmanager
def opened(path: str | Path, **options: Any) -> Iterator[xr.Dataset]:
    """Opens a file whose values are read in the block; every error names the file.

    Args:
        path: a file, or the folder of a Zarr store.
        options: options of `xarray.open_dataset`.
    """
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
    location: Any, engine: str | None = None, path: str | None = None, **options: Any
) -> xr.Dataset:
    """Opens a file whose metadata have been checked; arrays are not read.

    Args:
        location: path of a file or store, or what xarray opens for a URL.
        engine: xarray's engine; None chooses by `reading_engine`.
        path: path for errors; None is `location`.
        options: options of `xarray.open_dataset`.

    Raises:
        ValueError: it is no complete file or store, or its metadata ask for too much:
            see `io.metadata`.
    """
    path = os.fspath(location) if path is None else path
    with _named(path), warnings.catch_warnings():
        # Zarr 3 has no consolidated metadata. Times that datetime64 cannot hold
        # become cftime objects; whoever reads them raises the error.
        warnings.filterwarnings("ignore", "Failed to open Zarr store with")
        warnings.filterwarnings("ignore", "Unable to decode time axis")
        if not is_url(path):
            check_file(path)
        engine = engine or reading_engine(path)
        source = _complete(location, engine)
        if engine == "zarr":
            _checked_group(path, source)
        dataset = xr.open_dataset(
            source,
            engine=None if engine == "h5netcdf" else engine,
            cache=False,
            create_default_indexes=False,
            **options,
        )
        check_variables(path, dataset.variables)
        if not dataset.data_vars and (groups := _groups(path, engine)):
            raise ValueError(
                f"{path}: expected variables, got groups of them, {', '.join(groups)}; "
                "write those of a group to a file of their own: "
                "xarray.open_dataset(PATH, group=GROUP).to_netcdf(NEW_PATH)"
            )
        for name, coordinate in dataset.coords.items():
            if coordinate.dims == (name,):
                dataset = dataset.set_xindex([name])
    return dataset


def _groups(path: str, engine: str | None) -> list[str]:
    """The groups of a file or a store."""
    if is_url(path):
        return []
    tree = xr.open_groups(path, engine=engine)
    return [name for name, dataset in tree.items() if dataset.data_vars]


def open_group(path: str) -> Any:
    """Opens the group of a Zarr store, which need not be a data set of xarray.

    Args:
        path: folder or URL of the store.

    Raises:
        ValueError: it is no store, or its metadata ask for too much.
    """
    with _named(path):
        if not is_url(path):
            check_file(path)
        location = _remote(path, "zarr") if is_url(path) else path
        return _checked_group(path, _complete(location, "zarr"))


def _checked_group(path: str, store: Any) -> Any:
    import zarr

    group = zarr.open_group(store, mode="r")
    check_group(path, group)
    return group


def _open(path: str, engine: str | None) -> xr.Dataset:
    engine = reading_engine(path) if is_url(path) else engine

    def read() -> xr.Dataset:
        return open_dataset(
            _remote(path, engine) if is_url(path) else path, engine, path
        )

    return retried(read, path)


def _complete(location: Any, engine: str | None) -> Any:
    """A store or a file, in which values that are not there are errors."""
    if engine == "h5netcdf":
        from credit_jax.io.missing_chunks import WrittenStore

        return WrittenStore.open(location, phony_dims="access")
    if engine != "zarr":
        return location
    from zarr.storage import LocalStore

    from credit_jax.io.missing_chunks import CompleteStore

    if isinstance(location, str | os.PathLike):
        location = LocalStore(os.fspath(location), read_only=True)
    return CompleteStore(location)


def _remote(url: str, engine: str | None) -> Any:
    """What xarray opens for a URL: a file object (NetCDF) or a Zarr store."""
    if engine == "h5netcdf":
        return open_binary(url)
    from zarr.storage import ObjectStore

    return ObjectStore(store_at(url), read_only=True)
