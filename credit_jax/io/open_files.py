"""Opening NetCDF and Zarr files: the engine of each, and each file once."""

from __future__ import annotations

import collections
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import xarray as xr

# Files whose metadata are kept.
MAX_OPEN = 1000
_HDF5 = b"\x89HDF\r\n\x1a\n"
_CLASSIC = (b"CDF\x01", b"CDF\x02")


def is_url(path: str | Path) -> bool:
    """Whether a path is the address of a store: gs://, s3://, http:// or https://."""
    return "://" in str(path)


def reading_engine(path: str | Path) -> str | None:
    """The xarray engine that reads a file from any thread.

    The netCDF C library knows no threads: a read beside another read, or beside the
    writing or closing of any other file, can crash the process. NetCDF-4 files are HDF5
    and are read by h5netcdf, whose library locks itself; classic ones by scipy.

    Args:
        path: a file, or the folder or the address of a Zarr store.

    Returns:
        Name of the engine; None leaves the choice to xarray.
    """
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
    place = _remote_store(path) if is_url(path) else path
    engine = engine or reading_engine(path)
    try:
        with warnings.catch_warnings():
            # Zarr 3 has no consolidated metadata; times outside of datetime64 become
            # cftime objects, and where they are read, that is an error.
            warnings.filterwarnings("ignore", "Failed to open Zarr store with")
            warnings.filterwarnings("ignore", "Unable to decode time axis")
            return xr.open_dataset(place, engine=engine, cache=False)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{path}: cannot be opened as NetCDF or Zarr ({type(error).__name__}: "
            f"{error}); is it complete?"
        ) from error


def _remote_store(url: str) -> Any:
    """A Zarr store at an address, read without credentials and without the GIL."""
    try:
        from obstore import store
        from zarr.storage import ObjectStore
    except ImportError:
        raise ValueError(
            f"{url}: stores at an address need obstore: pip install credit-jax[cloud]"
        ) from None
    options: dict[str, Any] = {"skip_signature": True}
    if url.startswith("http"):
        options = {"client_options": {"allow_http": url.startswith("http:")}}
    return ObjectStore(store.from_url(url, **options), read_only=True)
