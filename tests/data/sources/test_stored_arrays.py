"""Variables read by h5py equal those read by xarray."""

import h5py
import numpy as np
import pytest
import xarray as xr

from credit_jax.data.sources.reader import Reader
from credit_jax.data.sources.stored_arrays import open_hdf5_array
from credit_jax.io.open_files import OpenFiles
from tests.data.world import make_fields

INDICES = {
    "slices": {"time": slice(2, 3), "latitude": slice(1, 5)},
    "levels in another order": {"level": [2, 0], "latitude": slice(1, 5, 2)},
    "positions twice, backward": {"level": [1, 1], "longitude": slice(7, 2, -2)},
    "two lists": {"latitude": [0, 1, 3], "longitude": [5, 2, 4]},
    "nothing": {"time": slice(2, 2)},
}


def stored(folder, **options):
    path = str(folder / "fields.nc")
    make_fields().to_netcdf(path, engine="h5netcdf", **options)
    return path, OpenFiles().dataset(path)


@pytest.mark.parametrize("index", INDICES)
def test_values_are_those_of_xarray(tmp_path, index):
    encoding = {"T": {"chunksizes": (1, 2, 4, 10), "zlib": True}}
    path, dataset = stored(tmp_path, encoding=encoding)
    for name in ("T", "SP"):
        variable = dataset[name].variable
        array = open_hdf5_array(path, name, variable, dataset)
        assert array is not None, name
        chosen = {d: own for d, own in INDICES[index].items() if d in variable.dims}
        found = array[tuple(chosen.get(dim, slice(None)) for dim in variable.dims)]
        expected = variable.isel(chosen).values
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.tobytes() == expected.tobytes(), name


def test_values_that_are_decoded_are_left_to_xarray(tmp_path):
    packed = {"dtype": "int16", "scale_factor": 0.01, "_FillValue": -9999}
    encoding = {"SP": {"_FillValue": 1e20}, "T": packed}
    path, dataset = stored(tmp_path, encoding=encoding)
    for name in ("T", "SP", "time"):
        assert open_hdf5_array(path, name, dataset[name].variable, dataset) is None, (
            name
        )
    assert open_hdf5_array(path, "U", dataset["U"].variable, dataset) is not None


def test_a_variable_shorter_than_its_unlimited_dim_is_left_to_xarray(tmp_path):
    path = str(tmp_path / "fields.nc")
    make_fields().to_netcdf(path, engine="h5netcdf", unlimited_dims=["time"])
    with h5py.File(path, "a") as file:
        file["SP"].resize(len(file["time"]) - 1, 0)
    dataset = OpenFiles().dataset(path)
    assert open_hdf5_array(path, "SP", dataset["SP"].variable, dataset) is None
    assert open_hdf5_array(path, "T", dataset["T"].variable, dataset) is not None
    last = dataset["SP"].isel(time=-1).values
    assert np.isnan(last).all() or (last == last.flat[0]).all(), "padding"


def test_a_reader_takes_h5py_for_netcdf(tmp_path):
    path, dataset = stored(tmp_path)
    opened = Reader("time", None).open(path)
    found = opened.values("T", {"time": slice(0, 1)}, 0)
    assert found.tobytes() == dataset["T"][:1].values.tobytes()
    assert opened.arrays["T"] is not None, "xarray read it"


def test_files_that_xarray_has_closed_are_opened_again(tmp_path):
    path, dataset = stored(tmp_path)
    with xr.set_options(file_cache_maxsize=1):
        array = open_hdf5_array(path, "SP", dataset["SP"].variable, dataset)
        other = tmp_path / "other.nc"
        make_fields().to_netcdf(other, engine="h5netcdf")
        OpenFiles().dataset(other)["T"].load()
        found = array[:, :, :]
    assert found.tobytes() == dataset["SP"].values.tobytes()
