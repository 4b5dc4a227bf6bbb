"""Forecasts read from stores and folders."""

from datetime import datetime

import numpy as np
import pytest
import xarray as xr

from credit_jax.evaluation.forecast_files import valid_time
from credit_jax.evaluation.opening import open_forecasts
from tests.extensions.plots.stores import STARTS, make_store, write_folder

HOUR = np.timedelta64(1, "h")
WANTED = {"SP": None, "T": (1, 0)}


def expected(store, start, lead):
    """Returns all members of SP and of both levels of T, the second level first."""
    own = store.isel(time=start, prediction_timedelta=lead)
    if "number" not in own.dims:
        own = own.expand_dims("number")
    deep = own["T"].isel(level=[1, 0]).transpose("number", "level", ...)
    flat = own["SP"].transpose("number", ...)
    return np.concatenate([flat.values[:, None], deep.values], axis=1)


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"time": "init_time", "prediction_timedelta": "lead_time"},
        {"latitude": "lat", "longitude": "lon", "number": "realization"},
    ],
)
@pytest.mark.parametrize("folder", ["forecast.zarr", "other.zarr"])
def test_stores(tmp_path, names, folder):
    store = make_store()
    make_store(**names).to_zarr(tmp_path / folder, consolidated=False)
    whole = folder == "forecast.zarr"
    found = open_forecasts(str(tmp_path if whole else tmp_path / folder))
    assert found.num_members == 2
    assert np.array_equal(found.starts, STARTS)
    assert np.array_equal(found.leads / HOUR, [6, 12]), "above 0"
    variables = found.grid.variables
    assert set(variables) == {"T", "SP"}
    assert variables["SP"].levels is None
    assert np.array_equal(variables["T"].levels, [500, 850])
    assert np.array_equal(found.read(1, 1, WANTED), expected(store, 1, 2))


@pytest.mark.parametrize(
    ("unit", "factor"), [("hours", 1), ("D", 1 / 24), ("milliseconds", 3_600_000)]
)
def test_a_file_whose_lead_times_are_numbers(tmp_path, unit, factor):
    """Longitude is before latitude, as in WeatherBench's own stores."""
    store = make_store(0)
    hours = store.assign_coords(prediction_timedelta=np.array([0, 6, 12]) * factor)
    hours["prediction_timedelta"].attrs["units"] = unit
    hours = hours.transpose(..., "longitude", "latitude")
    hours.to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
    found = open_forecasts(str(tmp_path / "f.nc"))
    assert found.num_members == 1
    assert np.array_equal(found.leads / HOUR, [6, 12])
    assert np.array_equal(found.read(0, 0, WANTED), expected(store, 0, 1))


def test_one_start_date_and_lead_time(tmp_path):
    store = make_store(0)
    store.isel(time=0, prediction_timedelta=1).to_netcdf(
        tmp_path / "f.nc", engine="h5netcdf"
    )
    found = open_forecasts(str(tmp_path / "f.nc"))
    assert np.array_equal(found.starts, STARTS[:1])
    assert np.array_equal(found.leads / HOUR, [6])
    assert np.array_equal(found.read(0, 0, WANTED), expected(store, 0, 1))


@pytest.mark.slow(but=["standard-False-2", "noleap-True-0"])
@pytest.mark.parametrize("members", [0, 2])
@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("calendar", ["standard", "noleap"])
def test_folders(tmp_path, members, group, calendar):
    store = make_store(members)
    folder = write_folder(store, tmp_path / "out", calendar, group)
    found = open_forecasts(str(folder))
    assert found.num_members == (members or 1)
    assert found.calendar == calendar
    assert np.array_equal(found.starts, STARTS)
    assert np.array_equal(found.leads / HOUR, [6, 12])
    for start in range(2):
        own = found.read(start, 1, WANTED)
        assert np.array_equal(own, expected(store, start, 2))
    assert valid_time(found, 0, 1) == np.datetime64("2004-02-28T12")


def test_a_variable_without_lead_times_is_constant(tmp_path):
    store = make_store(0)
    store["LSM"] = store["SP"].isel(prediction_timedelta=0, drop=True)
    store.to_zarr(tmp_path / "f.zarr", consolidated=False)
    variables = open_forecasts(str(tmp_path / "f.zarr")).grid.variables
    assert [name for name, x in variables.items() if x.constant] == ["LSM"]


def test_a_folder_that_is_incomplete(tmp_path):
    folder = write_folder(make_store(0), tmp_path)
    (folder / "20040301_0000Z" / "2004-03-01_T1200Z.nc").unlink()
    with pytest.raises(ValueError, match="from 2004-03-01T00:00, member 0, lacks lead"):
        open_forecasts(str(folder))


def test_leap_days_of_calendars(tmp_path):
    """Two days after 28 February are 2 March without a leap day."""
    place = tmp_path / "20040228_0000Z"
    place.mkdir()
    date = xr.date_range("2004-03-02", periods=1, calendar="noleap", use_cftime=True)
    valid(date).to_netcdf(place / "full.nc", engine="h5netcdf")
    found = open_forecasts(str(tmp_path))
    assert np.array_equal(found.leads / HOUR, [48])
    assert found.read(0, 0, {"SP": None}).shape == (1, 1, 2, 2)


def test_what_holds_no_forecasts(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.zarr does not exist"):
        open_forecasts(str(tmp_path / "no.zarr"))
    with pytest.raises(ValueError, match="holds no forecasts"):
        open_forecasts(str(tmp_path))
    make_store(0).isel(prediction_timedelta=0, drop=True).to_zarr(
        tmp_path / "truth.zarr", consolidated=False
    )
    with pytest.raises(ValueError, match="prediction_timedelta or lead_time or step"):
        open_forecasts(str(tmp_path / "truth.zarr"))


def test_names_of_gen1_folders(tmp_path):
    place = tmp_path / "2004-02-28T00Z"
    place.mkdir()
    file = place / "pred_2004-02-28T00Z_006.nc"
    valid([datetime(2004, 2, 28, 6)]).to_netcdf(file, engine="h5netcdf")
    found = open_forecasts(str(tmp_path))
    assert np.array_equal(found.starts, STARTS[:1])
    assert np.array_equal(found.leads / HOUR, [6])


def valid(times):
    """Returns a data set of one time."""
    ones = np.ones((1, 2, 2), np.float32)
    coords = {"time": times, "latitude": [0.0, 1.0], "longitude": [0.0, 1.0]}
    return xr.Dataset({"SP": (("time", "latitude", "longitude"), ones)}, coords)
