"""Opening NetCDF and Zarr files: the engine of each, and each file once."""

from __future__ import annotations

import collections
import os
import threading
from pathlib import Path

import xarray as xr

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
        path: a file, or the folder of a Zarr store.

    Returns:
        Name of the engine; None leaves the choice to xarray.
    """
    if os.path.isdir(path):
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
            path: a file, or the folder of a Zarr store.
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
    try:
        return xr.open_dataset(path, engine=engine or reading_engine(path), cache=False)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{path}: cannot be opened as NetCDF or Zarr ({type(error).__name__}: "
            f"{error}); is it complete?"
        ) from error
