"""Latitudes from a file, and the errors that name the key."""

import pytest
import xarray as xr

from credit_jax.io.open_files import OpenFiles
from credit_jax.plan.weighting import read_latitude


def test_read_latitude(tmp_path):
    files = OpenFiles()
    path = tmp_path / "static.nc"
    xr.Dataset(coords={"latitude": [10.0, -10.0]}).to_netcdf(path)
    assert read_latitude(path, "loss.file", files).tolist() == [10.0, -10.0]
    missing = r"loss\.file: .*missing\.nc does not exist"
    with pytest.raises(FileNotFoundError, match=missing):
        read_latitude(tmp_path / "missing.nc", "loss.file", files)
    xr.Dataset(coords={"y": [10.0]}).to_netcdf(tmp_path / "other.nc")
    with pytest.raises(ValueError, match=r"no one-dimensional `latitude`.*'y'"):
        read_latitude(tmp_path / "other.nc", "loss.file", files)
    (tmp_path / "text.nc").write_text("no data")
    with pytest.raises(ValueError, match=r"^loss\.file: .*text\.nc: cannot be opened"):
        read_latitude(tmp_path / "text.nc", "loss.file", files)
