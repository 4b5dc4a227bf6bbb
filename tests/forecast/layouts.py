"""Compares the layouts of two NetCDF files."""

import numpy as np
import xarray as xr

# The encoding that a file records.
ENCODING = (
    *("dtype", "units", "calendar", "zlib", "complevel", "shuffle", "fletcher32"),
    "_FillValue",
)


def assert_same_layout(ours: xr.Dataset, theirs: xr.Dataset) -> None:
    """Asserts equal names, dims, coordinates, attributes and encoding."""
    assert ours.sizes == theirs.sizes
    assert ours.attrs == theirs.attrs
    assert [*ours.data_vars] == [*theirs.data_vars]
    assert set(ours.variables) == set(theirs.variables)
    for name in theirs.variables:
        mine, other = ours[name], theirs[name]
        assert (mine.dims, mine.dtype) == (other.dims, other.dtype), name
        assert mine.attrs == other.attrs, name
        # Texts, as NaN is not equal to itself.
        kept = [{k: str(x.encoding.get(k)) for k in ENCODING} for x in (mine, other)]
        assert kept[0] == kept[1], name
    for name in theirs.coords:
        assert np.array_equal(ours[name].values, theirs[name].values), name
