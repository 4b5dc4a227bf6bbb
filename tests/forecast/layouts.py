"""Compares the layouts of two NetCDF files."""

import numpy as np
import xarray as xr

# The encoding that a file records.
ENCODING = (
    "dtype",
    "units",
    "calendar",
    "zlib",
    "complevel",
    "shuffle",
    "fletcher32",
)


def assert_same_layout(ours: xr.Dataset, theirs: xr.Dataset) -> None:
    """Asserts equal names, dims, coordinates, attributes and encoding."""
    assert ours.sizes == theirs.sizes
    assert ours.attrs == theirs.attrs
    assert [*ours.data_vars] == [*theirs.data_vars]
    assert set(ours.variables) == set(theirs.variables)
    for name in theirs.variables:
        mine, other = ours[name], theirs[name]
        assert mine.dims == other.dims, name
        assert mine.dtype == other.dtype, name
        assert mine.attrs == other.attrs, name
        for key in ENCODING:
            assert mine.encoding.get(key) == other.encoding.get(key), (name, key)
        fills = [x.encoding.get("_FillValue") for x in (mine, other)]
        assert (
            np.array_equal(*fills, equal_nan=True)
            if fills[0] is not None
            else (fills[0] == fills[1])
        )
    for name in theirs.coords:
        assert np.array_equal(ours[name].values, theirs[name].values), name
