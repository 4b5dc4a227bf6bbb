"""The cache of fields, and files that cannot be opened."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.data.sources.reader import Reader
from tests.data.damaged import load, refused, rewrite


def test_a_small_cache_reads_the_same(world, monkeypatch):
    whole = load(world).read([3, 1, 3])
    monkeypatch.setattr("credit_jax.data.sources.reader.CACHE_BYTES", 1000)
    small = load(world).read([3, 1, 3])
    assert np.array_equal(whole.x, small.x)


@pytest.mark.parametrize(("kept", "reads"), [(2**20, [4, 4, 1]), (0, [1] * 9)])
def test_times_of_a_chunk_are_read_together_where_they_may_be_kept(
    tmp_path, kept, reads
):
    path = str(tmp_path / "chunks.zarr")
    values = np.arange(9 * 2 * 3.0, dtype=np.float32).reshape(9, 2, 3)
    times = pd.date_range("2000-01-01", periods=9, freq="6h")
    data = xr.Dataset({"SP": (("time", "lat", "lon"), values)}, {"time": times})
    data.to_zarr(path, encoding={"SP": {"chunks": (4, 2, 3)}}, zarr_format=2)
    reader = Reader("time", None, kept)
    variable = reader.open(path).variable("SP")
    seen = []

    def read(index):
        steps = reader.chunk_times(variable, index)
        seen.append(len(steps))
        return {step: values[step].copy() for step in steps}

    for index in (5, 4, 8, 0, 3, 7, 1, 6, 2):
        field = reader.field((), index, lambda i=index: read(i))
        assert np.array_equal(field, values[index])
    assert sorted(seen) == sorted(reads)


def test_broken_file(folder):
    (folder / "w_1999.nc").write_bytes(b"nothing")
    refused(folder, "w_1999.nc: cannot be opened")


def test_time_twice(folder):
    rewrite(folder / "w_1999.nc", lambda d: d.isel(time=[0, 1, 1, 2]))
    refused(folder, "the time 1999-12-25T06:00:00 occurs more than once")
