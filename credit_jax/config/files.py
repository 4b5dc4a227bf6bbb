"""Opening the NetCDF and Zarr files that a config names."""

from __future__ import annotations

import os
from pathlib import Path

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
