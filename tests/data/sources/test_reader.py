"""Files of a time, and the cache of fields."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numcodecs
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.data.sources.files import discover
from credit_jax.data.sources.reader import Reader


@pytest.mark.parametrize(
    ("template", "names", "time", "found"),
    [
        ("run_1980_%Y.nc", ["run_1980_1999.nc", "run_1980_2000.nc"], "2000-06", 1),
        ("%Y/%m/e_*.nc", ["2000/01/e_a.nc", "2000/02/e_a.nc"], "2000-02-29T18", 1),
        ("d_%Y%m%d.nc", ["d_20000101.nc", "d_20000102.nc"], "2000-01-01T23", 0),
        ("d_%Y%m%d-%H", ["d_20000101-00", "d_20000101-06"], "2000-01-01T06", 1),
        ("d_%Y%j.nc", ["d_2000059.nc", "d_2000060.nc"], "2000-02-29", 1),
        ("d_%Y-*", ["d_1999-a", "d_2000-b"], "1999-12-31T18", 0),
        ("d_%Y.nc", ["d_1999.nc", "d_2001.nc"], "2000-01-01", None),
        ("d_%Y-%m-%d", ["d_1999-12-30", "d_2000-01-04"], "2000-01-03T18", 0),
        ("d_%Y-%m-%d", ["d_1999-12-30", "d_2000-01-04"], "2000-01-08T18", 1),
        ("d_%Y-%m-%d", ["d_1999-12-30", "d_2000-01-04"], "2000-01-09", None),
        ("%Y/e_%Y%m.nc", ["2000/e_200001.nc", "2000/e_200002.nc"], "2000-02", 1),
        ("d_%Y.nc", ["d_1999.nc"], "2000-01-01", 0),
        # Brackets are no wildcards.
        ("[ab]/x_%Y.nc", ["[ab]/x_1999.nc", "a/x_2000.nc"], "2000-01-01", 0),
    ],
)
def test_finds_the_file_of_a_time(tmp_path, template, names, time, found):
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    path = discover(f"{tmp_path}/{template}", "path").find(np.datetime64(time, "ns"))
    assert path == (None if found is None else f"{tmp_path}/{names[found]}")


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
        (64 * 96, numcodecs.Zstd(), [4, 4, 1]),  # one chunk may be kept
        (24, None, [1] * 17),  # one is
    ],
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
