"""Reading a part of the rows gives the same values and reads only their chunks."""

import numpy as np
import pytest

from credit_jax.data import open_dataset
from tests.data.bytes_read import bytes_read
from tests.data.world import parsed, raw_config, write_chunked


@pytest.fixture
def chunked(tmp_path):
    """The data set in chunks of two rows."""
    write_chunked(tmp_path)
    return tmp_path


@pytest.mark.slow(but=["rows0-nc", "rows1-zarr"])
@pytest.mark.parametrize("kind", ["nc", "zarr"])
@pytest.mark.parametrize("rows", [slice(0, 2), slice(2, 5), slice(5, 6)])
def test_rows_are_those_of_the_field(chunked, kind, rows):
    dataset = open_dataset(parsed(raw_config(chunked, kind)).data)
    source, times = dataset.sources["ERA5"], dataset.starts[:2]
    for field_type in ("prognostic", "static", "dynamic_forcing"):
        whole = source.read(field_type, times)
        part = source.read(field_type, times, rows)
        for key, field in whole.items():
            assert part[key].tobytes() == field[..., rows, :].tobytes(), key


def test_bytes_that_are_read(chunked):
    def read(rows):
        dataset = open_dataset(parsed(raw_config(chunked, "zarr")).data)
        source = dataset.sources["ERA5"]
        source.read("prognostic", dataset.starts[3:4], rows)  # the metadata, too
        before = bytes_read()
        source.read("prognostic", dataset.starts[:1], rows)
        return bytes_read() - before

    whole = read(None)
    # U and T in float64 on three levels, SP in float32.
    assert whole == 2 * 3 * 60 * 8 + 60 * 4
    print(f"{whole} bytes; 2 of 6 rows {read(slice(2, 4))}")
    assert read(slice(2, 4)) * 3 == whole
    assert np.isclose(read(slice(1, 3)) * 3, 2 * whole)
