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
        # Parts of an array of samples and channels, of which the last is left as it is.
        shapes = {key: field.shape for key, field in part.items()}
        ends = np.cumsum([0, *(shape[0] for shape in shapes.values())])
        x = np.zeros((2, ends[-1] + 1, *next(iter(shapes.values()))[1:]), np.float32)
        out = {
            key: x[1, a:b] for key, a, b in zip(shapes, ends, ends[1:], strict=False)
        }
        assert source.read(field_type, times, rows, out).keys() == out.keys()
        assert x[1, :-1].tobytes() == np.concatenate([*part.values()]).tobytes()
        assert not x[0].any()
        assert not x[1, -1].any()


def test_bytes_that_are_read(chunked):
    def read(rows):
        dataset = open_dataset(parsed(raw_config(chunked, "zarr")).data)
        source = dataset.sources["ERA5"]
        source.read("prognostic", dataset.starts[3:4], rows)  # the metadata, too
        with bytes_read() as counts:
            source.read("prognostic", dataset.starts[:1], rows)
        return sum(counts)

    whole = read(None)
    # U and T in float64 on two of three levels, SP in float32.
    assert whole == 2 * 2 * 60 * 8 + 60 * 4
    print(f"{whole} bytes; 2 of 6 rows {read(slice(2, 4))}")
    assert read(slice(2, 4)) * 3 == whole
    assert read(slice(1, 3)) * 3 == whole, "only parts of chunks"
