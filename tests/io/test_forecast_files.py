"""Forecasts in stores and folders, as one reads them."""

from datetime import datetime

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.io.forecast_files import level_dim, open_forecasts

HOUR = np.timedelta64(1, "h")
STARTS = pd.to_datetime(["2004-02-28", "2004-03-01"])


def make_store(num_members=2, **names):
    """A store of two start dates, lead times 0, 6 and 12 h, two levels."""
    members = {"number": [*range(num_members)]} if num_members else {}
    coords = {
        "time": STARTS,
        **members,
        "prediction_timedelta": (6 * np.arange(3) * HOUR).astype("timedelta64[ns]"),
        "level": [500, 850],
        "latitude": np.linspace(-80, 80, 4),
        "longitude": np.arange(0, 360, 60.0),
    }
    shape = [len(values) for values in coords.values()]
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    fields = {"T": (tuple(coords), values)}
    fields["SP"] = (tuple(n for n in coords if n != "level"), values[..., 0, :, :])
    store = xr.Dataset(fields, coords=coords)
    return store.rename({k: v for k, v in names.items() if k in store.dims})


def write_folder(store, folder, calendar="standard", group=False):
    """The same in CREDIT's layout, without lead time 0."""
    for start in store["time"].values:
        stamp = pd.Timestamp(start)
        place = folder / stamp.strftime("%Y%m%d_%H%MZ")
        own = store.sel(time=start).isel(prediction_timedelta=slice(1, None))
        for number in own["number"].values if "number" in own.dims else [None]:
            files = place if number is None else place / f"member_{number:03d}"
            files.mkdir(parents=True)
            part = own if number is None else own.sel(number=number)
            times = xr.date_range(
                str(stamp), periods=3, freq="6h", calendar=calendar, use_cftime=True
            )[1:]
            part = part.drop_vars("time").rename(prediction_timedelta="time")
            part = part.assign_coords(time=times)
            for step in range(1 if group else 2):
                chosen = part if group else part.isel(time=[step])
                name = "2004" if group else times[step].strftime("%Y-%m-%d_T%H%MZ")
                chosen.to_netcdf(files / f"{name}.nc", engine="h5netcdf")
    return folder


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
    found = open_forecasts(tmp_path if whole else tmp_path / folder)
    assert found.members == 2
    assert np.array_equal(found.starts, STARTS)
    assert np.array_equal(found.leads / HOUR, [0, 6, 12])
    assert set(found.layout.data_vars) == {"T", "SP"}
    assert level_dim(found.layout["T"]) == "level"
    assert level_dim(found.layout["SP"]) is None
    field = found.read(1, 2, ["T"], level=1)["T"]
    assert field.dims == ("number", "latitude", "longitude")
    assert np.array_equal(
        field, store["T"].isel(time=1, prediction_timedelta=2, level=1)
    )


def test_a_file_whose_lead_times_are_hours(tmp_path):
    store = make_store(0)
    store["prediction_timedelta"] = [0, 6, 12]
    store["prediction_timedelta"].attrs["units"] = "hours"
    store = store.transpose(..., "longitude", "latitude")
    store.to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
    found = open_forecasts(tmp_path / "f.nc")
    assert found.members is None
    assert np.array_equal(found.leads / HOUR, [0, 6, 12])
    field = found.read(0, 1, ["SP"])["SP"]
    assert field.dims == ("latitude", "longitude")


@pytest.mark.parametrize("members", [0, 2])
@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("calendar", ["standard", "noleap"])
def test_folders(tmp_path, members, group, calendar):
    store = make_store(members)
    found = open_forecasts(write_folder(store, tmp_path / "out", calendar, group))
    assert found.members == (members or None)
    if calendar == "noleap":
        first = cftime.datetime(2004, 2, 28, calendar="noleap")
        assert found.starts[1] - found.starts[0] == pd.Timedelta("1D")
        assert found.starts[0] == first
    else:
        assert np.array_equal(found.starts, STARTS)
    assert np.array_equal(found.leads / HOUR, [6, 12])
    for start in range(2):
        field = found.read(start, 1, ["T"], level=0)["T"]
        own = store["T"].isel(time=start, prediction_timedelta=2, level=0)
        assert field.dims == own.dims
        assert np.array_equal(field, own)


def test_a_folder_that_is_incomplete(tmp_path):
    folder = write_folder(make_store(0), tmp_path)
    (folder / "20040301_0000Z" / "2004-03-01_T1200Z.nc").unlink()
    found = open_forecasts(folder)
    assert found.read(0, 1, ["SP"])
    with pytest.raises(ValueError, match="20040301_0000Z has no lead time of 12:00"):
        found.read(1, 1, ["SP"])


def test_what_holds_no_forecasts(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no\.zarr does not exist"):
        open_forecasts(tmp_path / "no.zarr")
    with pytest.raises(ValueError, match=r"neither forecast\.zarr nor folders of"):
        open_forecasts(tmp_path)
    make_store(0).isel(prediction_timedelta=0, drop=True).to_zarr(
        tmp_path / "truth.zarr", consolidated=False
    )
    found = open_forecasts(tmp_path / "truth.zarr")
    with pytest.raises(ValueError, match="no coordinate prediction_timedelta"):
        found.starts  # noqa: B018


def test_names_of_gen1_folders(tmp_path):
    place = tmp_path / "2004-02-28T00Z"
    place.mkdir()
    valid = xr.Dataset(
        {"SP": (("time", "latitude", "longitude"), np.ones((1, 2, 2), np.float32))},
        coords={"time": [datetime(2004, 2, 28, 6)]},
    )
    valid.to_netcdf(place / "pred_2004-02-28T00Z_006.nc", engine="h5netcdf")
    found = open_forecasts(tmp_path)
    assert np.array_equal(found.starts, STARTS[:1])
    assert np.array_equal(found.leads / HOUR, [6])
