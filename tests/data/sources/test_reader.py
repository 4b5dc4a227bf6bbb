"""The cache of fields, and files that cannot be opened."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numcodecs
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


def times_of_chunks(folder, compressors):
    """A store of nine times in chunks of four, and its values."""
    path = str(folder / "chunks.zarr")
    values = np.arange(9 * 2 * 3.0, dtype=np.float32).reshape(9, 1, 2, 3)
    dims, times = ("time", "level", "y", "x"), pd.date_range("2000", periods=9)
    data = xr.Dataset({"SP": (dims, values)}, {"time": times})
    encoding = {"SP": {"chunks": (4, 1, 2, 3), "compressors": compressors}}
    data.to_zarr(path, encoding=encoding, zarr_format=2)
    return path, values


@pytest.mark.parametrize(
    ("kept", "compressors", "reads"),
    [
        (2**20, numcodecs.Zstd(), [4, 4, 1]),
        (2**20, None, [1] * 9),
        (0, numcodecs.Zstd(), [1] * 18),
        (64 * 96, numcodecs.Zstd(), [4, 4, 1]),
        (24, None, [1] * 17),
    ],
    ids=["kept", "not compressed", "nothing kept", "one chunk may be", "one is kept"],
)
@pytest.mark.parametrize("to", [False, True])
def test_each_time_is_read_once_where_it_is_kept(
    tmp_path, kept, compressors, reads, to
):
    path, values = times_of_chunks(tmp_path, compressors)
    reader = Reader("time", None, kept)
    opened, seen = reader.open(path), []

    def load(times, out):
        seen.append(len(times))
        out[...] = values[times.start : times.stop]

    for index in 2 * (5, 4, 8, 0, 3, 7, 1, 6, 2):
        times, shape = reader.chunk_times(opened, "SP", index), (1, 2, 3)
        out = np.empty(shape, np.float32) if to else None
        field = reader.field((), times, index, shape, load, out)
        assert np.array_equal(field, values[index])
        assert (field is out) == to
    assert sorted(seen) == sorted(reads)


def test_threads_wait_for_a_field_that_one_of_them_reads():
    reader, begun, seen = Reader("time", None, 2**20), threading.Event(), []

    def load(times, out):
        seen.append(times)
        begun.wait(10)
        out[...] = 3.0

    def read(_):
        return reader.field((), range(1), 0, (1, 2), load)

    with ThreadPoolExecutor(4) as pool:
        fields = pool.map(read, range(4))
        begun.set()
        assert [field.tolist() for field in fields] == [[[3.0, 3.0]]] * 4
    assert len(seen) == 1


def test_a_field_that_failed_is_read_again():
    reader, errors = Reader("time", None, 2**20), [OSError("once")]

    def load(times, out):
        for error in errors:
            raise error
        out[...] = 3.0

    for _ in range(2):
        with pytest.raises(OSError, match="once"):
            reader.field((), range(1), 0, (1, 2), load)
    errors.clear()
    assert reader.field((), range(1), 0, (1, 2), load).tolist() == [[3.0, 3.0]]


def test_broken_file(folder):
    (folder / "w_1999.nc").write_bytes(b"nothing")
    refused(folder, "w_1999.nc: cannot be opened")


def test_time_twice(folder):
    rewrite(folder / "w_1999.nc", lambda d: d.isel(time=[0, 1, 1, 2]))
    refused(folder, "the time 1999-12-25T06:00:00 occurs more than once")
