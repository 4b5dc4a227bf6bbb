"""NetCDF files, and what becomes of one that does not fit."""

import io
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.io.netcdf import NetcdfSeries, write_netcdf
from tests.forecast.layouts import assert_same_layout
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("netcdf")

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


def test_a_full_disk_is_an_error_and_no_crash(tmp_path):
    """HDF5 itself would end the process by a signal."""
    command = [sys.executable, "-c", ON_A_FULL_DISK, str(tmp_path / "t.nc")]
    assert subprocess.run(command, check=False).returncode == 27, "File too large"


ENCODINGS = {
    "plain": {},
    "double precision": {"T": {"dtype": "float64"}},
    "compressed": {"T": {"zlib": True, "complevel": 4, "chunksizes": (1, 2, 8)}},
    "chunks over the edge": {
        "T": {"zlib": True, "shuffle": False, "chunksizes": (1, 3, 5)}
    },
    "checksums": {"T": {"zlib": True, "fletcher32": True}},
    "a fill value": {"T": {"_FillValue": -999.0}},
}


def steps(start, count=1):
    """Some times on a curvilinear grid, one value missing."""
    values = np.random.default_rng(0).normal(size=(count, 4, 8)).astype(np.float32)
    values[0, 0, 0] = np.nan
    times = pd.date_range(start, periods=count, freq="6h")
    units = {"units": "hours since 2000-01-01", "dtype": "int64"}
    return xr.Dataset(
        {"T": (("time", "y", "x"), values, {"units": "K"})},
        {
            "time": ("time", times, {}, units),
            "number": 3,
            "latitude": (("y", "x"), np.arange(32.0).reshape(4, 8)),
        },
        {"Conventions": "CF-1.11"},
    )


@pytest.mark.filterwarnings("ignore:Times can't be serialized faithfully")
@pytest.mark.parametrize("name", ENCODINGS)
def test_a_series_has_the_files_of_xarray(tmp_path, name):
    """The third has other units of time, the fourth another number of times."""
    series = NetcdfSeries(ENCODINGS[name])
    one, other = tmp_path / "one.nc", tmp_path / "other.nc"
    dates = "2000-01-01", "2000-01-02", "2000-01-02T00:30", "2000-01-03"
    for number, date in enumerate(dates, 1):
        given = steps(date, count=2 if number == 4 else 1)
        series.write(given, one)
        write_netcdf(given, other, ENCODINGS[name])
        assert one.stat().st_size <= other.stat().st_size
        with xr.open_dataset(one) as ours, xr.open_dataset(other) as theirs:
            assert_same_layout(ours, theirs)
            xr.testing.assert_identical(ours.load(), theirs.load())
            assert (
                ours["T"].encoding["chunksizes"] == theirs["T"].encoding["chunksizes"]
            )


def test_a_layout_takes_no_space(tmp_path):
    """However large the fields are: it is kept."""
    series = NetcdfSeries()
    series.write(xr.Dataset({"T": ("x", np.zeros(10_000))}), tmp_path / "t.nc")
    ((empty, between, _),) = series._layouts.values()
    kept = len(empty) + sum(map(len, between))
    assert kept < 40_000 < (tmp_path / "t.nc").stat().st_size
    with xr.open_dataset(io.BytesIO(empty)) as found:
        assert found["T"].shape == (10_000,)


def test_chunks_of_the_last_files(tmp_path):
    """A day of which the forecast has two times, where the chunks have four."""
    series = NetcdfSeries({"T": {"chunksizes": (4, 4, 8)}})
    series.write(steps("2000-01-01", count=2), tmp_path / "t.nc")
    with xr.open_dataset(tmp_path / "t.nc") as found:
        assert found["T"].encoding["chunksizes"] == (2, 4, 8)


CASES.rows(
    lambda encoding: NetcdfSeries({"T": encoding}).check(steps("2000-01-01")),
    ({"dtype": "float16"},),
    ({"chunksizes": (1, 4)},),
    ({"chunksizes": (1, 0, 8)},),
    name="encoding",
)
