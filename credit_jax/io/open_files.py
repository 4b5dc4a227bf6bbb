"""Opening NetCDF and Zarr files: the engine of each, and each file once."""

from __future__ import annotations

import collections
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import xarray as xr

from credit_jax.io.remote import is_url, open_binary, store_at
from credit_jax.io.retry import is_transient, retried

# Files whose metadata are kept.
MAX_OPEN = 1000
_HDF5 = b"\x89HDF\r\n\x1a\n"
_CLASSIC = (b"CDF\x01", b"CDF\x02")


def reading_engine(path: str | Path) -> str | None:
    """The xarray engine that reads a file from any thread.

    The netCDF C library knows no threads: a read beside another read, or beside the
    writing or closing of any other file, can crash the process. NetCDF-4 files are HDF5
    and are read by h5netcdf, whose library locks itself; classic ones by scipy.

    Args:
        path: a file, or the folder or the address of a Zarr store; an address that ends
            with .nc is that of a NetCDF-4 file.

    Returns:
        Name of the engine; None leaves the choice to xarray.
    """
    if is_url(path) and str(path).endswith(".nc"):
        return "h5netcdf"
    if is_url(path) or os.path.isdir(path):
        return "zarr"
    try:
        with open(path, "rb") as file:
            start = file.read(len(_HDF5))
    except OSError:
        return None
    if start == _HDF5:
        return "h5netcdf"
    return "scipy" if start.startswith(_CLASSIC) else None


class OpenFiles:
    """Files that are opened at their first use and stay open, for any thread.

    One instance is shared by all that read for a run, so that each file is opened once.
    Of more than MAX_OPEN files, those used longest ago are closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._datasets: collections.OrderedDict = collections.OrderedDict()

    def dataset(self, path: str | Path, engine: str | None = None) -> xr.Dataset:
        """The data set of a file; no field is read.

        Args:
            path: a file, or the folder or the address of a Zarr store.
            engine: xarray's engine; None goes by what the file holds.

        Raises:
            ValueError: the file is no complete NetCDF file or Zarr store.
            OSError: its storage fails again and again.
        """
        key = os.fspath(path), engine
        with self._lock:
            if key not in self._datasets:
                self._datasets[key] = _open(*key)
            self._datasets.move_to_end(key)
            while len(self._datasets) > MAX_OPEN:
                self._datasets.popitem(last=False)
            return self._datasets[key]


def _open(path: str, engine: str | None) -> xr.Dataset:
    engine = reading_engine(path) if is_url(path) else engine or reading_engine(path)

    def read() -> xr.Dataset:
        place = _remote(path, engine) if is_url(path) else path
        with warnings.catch_warnings():
            # Zarr 3 has no consolidated metadata; times outside of datetime64 become
            # cftime objects, and where they are read, that is an error.
            warnings.filterwarnings("ignore", "Failed to open Zarr store with")
            warnings.filterwarnings("ignore", "Unable to decode time axis")
            return xr.open_dataset(place, engine=engine, cache=False)

    try:
        return retried(read, path)
    except (OSError, ValueError, KeyError) as error:
        if is_transient(error.__cause__ or error):
            raise
        raise ValueError(
            f"{path}: cannot be opened as NetCDF or Zarr ({type(error).__name__}: "
            f"{error}); is it complete?"
        ) from error


def _remote(url: str, engine: str | None) -> Any:
    """A NetCDF file or a Zarr store at an address."""
    if engine == "h5netcdf":
        return open_binary(url)
    from zarr.storage import ObjectStore

    return ObjectStore(store_at(url), read_only=True)
