"""Files that xarray's engines take for nothing, or for a data set without variables."""

import gzip
import zipfile

import numpy as np
import pytest
import xarray as xr

from credit_jax.io.open_files import opened


def test_archives_and_groups_say_what_to_do(tmp_path):
    fields = xr.Dataset({"T": (("lat", "lon"), np.ones((2, 3), np.float32))})
    fields.to_netcdf(tmp_path / "a.nc")
    content = (tmp_path / "a.nc").read_bytes()
    (tmp_path / "a.nc.gz").write_bytes(gzip.compress(content))
    with zipfile.ZipFile(tmp_path / "b.nc", "w") as archive:
        archive.writestr("a.nc", content)
    fields.to_netcdf(tmp_path / "group.nc", group="obs")
    fields.to_zarr(tmp_path / "group.zarr", group="obs", zarr_format=2)
    for name, message in {
        "a.nc.gz": "got compressed by gzip; unpack",
        "b.nc": "got a zip archive; unpack",
        "group.nc": "got groups of them, /obs",
        "group.zarr": "got groups of them, /obs",
    }.items():
        with pytest.raises(ValueError, match=f"{name}: .*{message}"):
            opened(tmp_path / name).__enter__()
