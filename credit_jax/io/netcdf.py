"""NetCDF files, written whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xarray as xr


def write_netcdf(
    dataset: xr.Dataset, path: Path, encoding: Mapping[Any, Any] | None = None
) -> None:
    """Writes a NetCDF-4 file.

    The file is made in memory first: HDF5 cannot close a file that does not fit on its
    disk, and then crashes the process when it ends, whatever its exit code was to be.

    Args:
        dataset: to write.
        path: of the file.
        encoding: of its variables, as in `xarray.Dataset.to_netcdf`.

    Raises:
        OSError: it cannot be written.
    """
    content = dataset.to_netcdf(None, engine="h5netcdf", encoding=encoding)
    path.write_bytes(content)
