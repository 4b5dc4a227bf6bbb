"""Values of NetCDF-4 files that were never written: an error, or missing values."""

import os

import h5py
import numpy as np
import pytest
import xarray as xr

from credit_jax.data.sources.stored_files import open_hdf5_array, open_zarr_array
from credit_jax.io.open_files import OpenFiles

SHAPE, CHUNKS = (6, 4, 8), (2, 4, 3)
FIELD = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
DIMS = ("time", "latitude", "longitude")


def stored(folder, written=slice(0, 4), attribute=None, **options):
    """A file whose variable T has values at some times alone."""
    path = str(folder / "fields.nc")
    coordinates = {dim: np.arange(n) for dim, n in zip(DIMS, SHAPE, strict=True)}
    xr.Dataset(coords=coordinates).to_netcdf(path, engine="h5netcdf")
    with h5py.File(path, "a") as file:
        made = file.create_dataset("T", SHAPE, "f4", **{"chunks": CHUNKS, **options})
        for place, dim in enumerate(DIMS):
            made.dims[place].attach_scale(file[dim])
        if attribute is not None:
            made.attrs["_FillValue"] = np.float32(attribute)
        if written is not None:
            made[written] = FIELD[written]
    return path, OpenFiles().dataset(path)


def ways(path, dataset):
    """Reads by xarray and directly, at an outer index."""
    array = open_hdf5_array(path, "T", dataset["T"].variable, dataset)
    lazy = dataset["T"].variable
    yield lambda index: lazy.isel(dict(zip(DIMS, index, strict=True))).values

    def read(index):
        shape = [np.arange(n)[own].size for n, own in zip(SHAPE, index, strict=True)]
        out = np.empty(shape, np.float32)
        array.read(index, out)
        return out

    if array is not None:
        yield read


WHOLE = slice(None)


def test_chunks_that_were_never_written_are_an_error(tmp_path):
    path, dataset = stored(tmp_path)
    reads = [*ways(path, dataset)]
    assert len(reads) == 2
    for read in reads:
        for index in ((slice(1, 4), WHOLE, WHOLE), ([3, 0], [1], slice(7, 2, -2))):
            pairs = zip(SHAPE, index, strict=True)
            expected = FIELD[np.ix_(*(np.arange(size)[own] for size, own in pairs))]
            np.testing.assert_array_equal(read(index), expected)
        with pytest.raises(ValueError, match=r"the chunk 2\.0\.\d of /T was never"):
            read((slice(3, 5), WHOLE, slice(0, 1)))
        with pytest.raises(ValueError, match=r"the chunk 2\.0\.1 of /T was never"):
            read(([5], [0], [4]))


@pytest.mark.parametrize("chunks", [CHUNKS, None])
def test_nothing_was_written(tmp_path, chunks):
    """HDF5 has no storage for an array in one piece, either, until it is written."""
    for read in ways(*stored(tmp_path, None, chunks=chunks)):
        with pytest.raises(ValueError, match=r"of /T was never written"):
            read((slice(0, 1), WHOLE, WHOLE))


def test_the_mark_of_missing_values(tmp_path):
    """What NetCDF writers leave out is missing where their fill value says so."""
    path, dataset = stored(tmp_path, attribute=np.nan, fillvalue=np.nan)
    for read in ways(path, dataset):
        assert np.isnan(read((slice(4, 6), WHOLE, WHOLE))).all()
        np.testing.assert_array_equal(read((slice(0, 4), WHOLE, WHOLE)), FIELD[:4])


def test_a_mark_that_hdf5_does_not_know(tmp_path):
    """The attribute alone does not make HDF5 read its value."""
    for read in ways(*stored(tmp_path, attribute=np.nan)):
        with pytest.raises(ValueError, match="never written"):
            read((slice(4, 6), WHOLE, WHOLE))


def test_a_variable_shorter_than_its_unlimited_dim(tmp_path):
    path = str(tmp_path / "fields.nc")
    field = xr.Dataset({"T": (DIMS, FIELD)}, {"time": np.arange(SHAPE[0])})
    encoding = {"T": {"_FillValue": None}}
    options = {"unlimited_dims": ["time"], "encoding": encoding}
    field.to_netcdf(path, engine="h5netcdf", **options)
    with h5py.File(path, "a") as file:
        file["T"].resize(SHAPE[0] - 2, 0)
    variable = OpenFiles().dataset(path)["T"].variable
    assert variable.shape == SHAPE
    np.testing.assert_array_equal(variable[:4].values, FIELD[:4])
    with pytest.raises(ValueError, match="never written"):
        _ = variable[4:].values


def test_time_and_memory_do_not_grow_with_what_is_missing(tmp_path):
    """A variable of 1e15 values of which a few are there."""
    path = str(tmp_path / "fields.nc")
    with h5py.File(path, "w") as file:
        file.create_dataset("T", (10**5, 10**5, 10**5), "f4", chunks=(1, 10, 10))
        file["T"][3, :10, :10] = 1.0
    variable = OpenFiles().dataset(path)["T"].variable
    assert (variable[3, :10, :10].values == 1).all()
    with pytest.raises(ValueError, match=r"chunk 3\.0\.1 of /T"):
        _ = variable[3, :10, 10:20].values


@pytest.mark.parametrize("packed", [False, True])
def test_chunks_of_zeros_that_zarr_leaves_out(tmp_path, packed):
    """Zarr v2 without a fill value, as xarray writes times, masks and land cover."""
    path, start = str(tmp_path / "fields.zarr"), np.datetime64("2000-01-01", "ns")
    mask = np.zeros((1, 4), np.int16)
    fields = xr.Dataset({"mask": (("time", "y"), mask)}, {"time": [start]})
    fields["time"].encoding = {"units": "hours since 2000-01-01"}
    if packed:  # what a missing chunk of these was, nobody can say
        fields["mask"].attrs["scale_factor"] = 0.5
    fields.to_zarr(path, zarr_format=2, consolidated=False)
    for name in ("time", "mask"):
        assert len(os.listdir(f"{path}/{name}")) == 2, "no chunk, which this is about"
    dataset = OpenFiles().dataset(path)
    np.testing.assert_array_equal(dataset["time"], fields["time"])
    array = open_zarr_array(path, "mask", dataset["mask"].variable)
    out = np.ones(mask.shape, np.float32)
    if packed:
        with pytest.raises(ValueError, match=r"mask/0.0 is missing"):
            _ = dataset["mask"].values
        with pytest.raises(ValueError, match=r"mask/0.0 is missing"):
            array.read((slice(None),) * 2, out)
        return
    np.testing.assert_array_equal(dataset["mask"], mask)
    array.read((slice(None),) * 2, out)
    np.testing.assert_array_equal(out, mask)
