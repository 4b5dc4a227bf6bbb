"""NetCDF files, and what becomes of one that does not fit."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import xarray as xr

from credit_jax.io.netcdf import write_netcdf

ON_A_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import numpy as np
import xarray as xr
from credit_jax.io.netcdf import write_netcdf

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    write_netcdf(xr.Dataset({"T": ("x", np.arange(10_000.0))}), Path(sys.argv[1]))
except OSError as error:
    sys.exit(error.errno)
"""


def test_a_file_is_that_of_xarray(tmp_path: Path) -> None:
    fields = xr.Dataset({"T": (("lat", "lon"), np.ones((4, 6), np.float32))})
    encoding = {"T": {"zlib": True, "_FillValue": 9e20}}
    write_netcdf(fields, tmp_path / "ours.nc", encoding)
    fields.to_netcdf(tmp_path / "plain.nc", engine="h5netcdf", encoding=encoding)
    ours, plain = (xr.open_dataset(tmp_path / f"{n}.nc") for n in ("ours", "plain"))
    with ours, plain:
        assert ours.identical(plain)
        for key in ("zlib", "_FillValue", "dtype"):
            assert ours["T"].encoding[key] == plain["T"].encoding[key]


def test_a_full_disk_is_an_error_and_no_crash(tmp_path: Path) -> None:
    """HDF5 itself would end the process by a signal."""
    command = [sys.executable, "-c", ON_A_FULL_DISK, str(tmp_path / "t.nc")]
    assert subprocess.run(command, check=False).returncode == 27, "File too large"
