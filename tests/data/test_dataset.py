"""Samples: fields, times and calendars."""

import cftime
import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.data import open_dataset
from tests.data.damaged import load
from tests.data.world import GRID, make_fields, parsed, raw_config, save


@pytest.mark.parametrize("kind", ["nc", "zarr"])
def test_fields_of_a_sample(world, kind):
    dataset = open_dataset(parsed(raw_config(world, kind)).data)
    fields = make_fields()
    assert len(dataset) == 8 * 4
    time = np.datetime64("1999-12-31T18:00", "ns")  # the target is in the next file
    sample = dataset[int(np.flatnonzero(dataset.starts == time)[0])]
    assert sample.target_time == np.datetime64("2000-01-01T00:00", "ns")
    now, later = (fields.sel(time=t) for t in (time, sample.target_time))
    inputs, targets = sample.input["ERA5"], sample.target["ERA5"]
    assert list(targets) == [
        "ERA5/prognostic/3d/U",
        "ERA5/prognostic/3d/T",
        "ERA5/prognostic/2d/SP",
        "ERA5/diagnostic/2d/TP",
    ]
    deep = now["T"].values[[0, 2]].astype(np.float32)
    assert np.array_equal(inputs["ERA5/prognostic/3d/T"][:, 0], deep)
    flat = later["TP"].values
    assert np.array_equal(targets["ERA5/diagnostic/2d/TP"][0, 0], flat)
    assert inputs["ERA5/static/2d/LSM"].shape == (1, 1, 6, 10)
    assert np.array_equal(dataset.degrees("latitude"), GRID["latitude"])
    assert np.array_equal(dataset.degrees("longitude"), GRID["longitude"])


@pytest.mark.parametrize("calendar", ["noleap", "julian"])
def test_files_of_two_calendars(folder, calendar):
    """The same date may be another day, of julian 13 days later."""
    with xr.open_dataset(folder / "w_2000.nc") as opened:
        fields = opened.load()
    labels = pd.DatetimeIndex(fields.time.values).strftime("%Y-%m-%dT%H:%M:%S")
    times = [cftime.datetime.strptime(t, "%Y-%m-%dT%H:%M:%S", calendar) for t in labels]
    save(fields.assign_coords(time=times), folder / "w_2000.nc")
    text = f"w_2000.nc: its times are in the calendar {calendar}, those of .*w_1999.nc"
    with pytest.raises(ValueError, match=text):
        load(folder)


def test_noleap_calendar(folder):
    """In a noleap file 28 February is followed by 1 March, in 2000, too."""
    days = xr.date_range(
        "2000-02-26", "2000-03-03", freq="6h", calendar="noleap", use_cftime=True
    )
    for name in ("w_1999.nc", "w_2000.nc"):
        (folder / name).unlink()
    fields = make_fields(pd.date_range("2001-01-01", periods=len(days), freq="6h"))
    save(fields.assign_coords(time=days), folder / "w_2000.nc")
    dates = {"data__start_datetime": "2000-02-27", "data__end_datetime": "2000-03-02"}
    dataset = load(folder, **dates).dataset
    starts = [str(start)[:13] for start in dataset.starts]
    assert "2000-02-29T00" not in starts
    last = dataset[starts.index("2000-02-28T18")]
    assert str(last.target_time)[:13] == "2000-03-01T00"
    expected = fields["TP"].values[12].astype(np.float32)
    assert np.array_equal(last.target["ERA5"]["ERA5/diagnostic/2d/TP"][0, 0], expected)
    assert len(dataset) == 3 * 4
