"""The demo of assimilation: its observations and its bound."""

import shutil

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from benchmarks import assimilation_demo
from benchmarks.assimilation_bound import best_estimate
from benchmarks.assimilation_demo import VARIABLES, observe
from tests.extensions.assimilation.test_background import covariance

START = pd.Timestamp("2001-06-15")


def _truth(start, end):
    times = pd.date_range(start, end, freq="6h")
    rng, levels = np.random.default_rng(0), np.array([0.25, 0.75])
    dims = ("time", "level", "latitude", "longitude")
    fields = {
        name: (dims, rng.standard_normal((len(times), 2, 6, 8)).astype(np.float32))
        for name in VARIABLES
        if name != "SP"
    }
    surface = rng.standard_normal((len(times), 6, 8)).astype(np.float32)
    fields["SP"] = ("time", "latitude", "longitude"), 1e5 + 100 * surface
    latitude, longitude = np.linspace(75, -75, 6), np.arange(8) * 45.0
    axes = {"level": levels, "latitude": latitude, "longitude": longitude}
    return xr.Dataset(fields, {"time": times, **axes})


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The truth of both years."""
    folder = tmp_path / "data"
    truth = _truth("2001-06-10", "2001-06-26")
    truth.to_zarr(folder / "demo_2001.zarr", zarr_format=2)
    _truth("2000-01-01", "2000-01-20").to_zarr(folder / "demo_2000.zarr", zarr_format=2)
    monkeypatch.setattr(assimilation_demo, "DATA", folder)
    return truth


def _runs(folder, truth):
    """The output of all commands: errors of 4, 2 and 1 in every variable."""
    free = (truth.sel(time=slice("2001-06-10", None)) + 4).rename(
        time="prediction_timedelta"
    )
    leads = free["prediction_timedelta"] - np.datetime64("2001-06-10")
    free = free.assign_coords(prediction_timedelta=leads)
    free = free.expand_dims(time=[np.datetime64("2001-06-10", "ns")])
    free.to_zarr(folder / "free" / "forecast.zarr", zarr_format=2)
    for number in range(10):
        start = START + number * pd.Timedelta("1D")
        for kind, error, valid in (
            ("analyses", 1, start),
            ("forecasts", 2, start + pd.Timedelta("1D")),
        ):
            name = f"{start:%Y%m%d_%H%MZ}/{valid:%Y-%m-%d_T%H%MZ}.nc"
            path = folder / "analyses" / kind / name
            path.parent.mkdir(parents=True)
            (truth.sel(time=[valid]) + error).to_netcdf(path, engine="h5netcdf")
    rows = [
        {"window": f"w{k}", "variable": v, "spread": 0.9 + k / 10, "chi_squared": 1.0}
        for k in range(3)
        for v in VARIABLES
    ]
    pd.DataFrame(rows).to_csv(folder / "analyses" / "statistics.csv")
    for name in ("killed", "mesh"):
        part = "analyses/20010615_0000Z"
        shutil.copytree(folder / "analyses" / part, folder / name / part)


def test_observations(data):
    """5 % of the points of every variable, with errors of 10 % of a spread of 1."""
    table = observe(START, pd.Timedelta("10D"))
    assert table["time"].min() >= START
    assert table["time"].max() == START + pd.Timedelta("9D18h")
    rows = table[table["variable"] == "U"]
    assert len(rows) / (40 * 2 * 6 * 8) == pytest.approx(0.05, abs=0.01)
    assert rows["error"].to_numpy() == pytest.approx(0.1, rel=0.1)
    truth = data["U"].to_dataframe().reset_index()
    joined = rows.merge(truth, on=["time", "level", "latitude", "longitude"])
    assert len(joined) == len(rows)
    scaled = (joined["value"] - joined["U"]) / joined["error"]
    assert scaled.std() == pytest.approx(1, rel=0.2)
    assert table.loc[table["variable"] == "SP", "level"].isna().all()


def test_the_best_estimate_is_that_of_dense_matrices():
    b, rng = covariance(truncation=4), np.random.default_rng(0)
    shape = len(b.channels), 16, 32
    observed, sizes = rng.random(shape) < 0.02, np.array([1.0, 2.0, 3.0])
    values = b.fields(rng.standard_normal(b.shape))
    places = np.flatnonzero(observed)
    columns = []
    for place in places:
        unit = np.zeros(shape)
        unit.flat[place] = 1
        columns.append(b.fields(b.transposed(unit)).ravel())
    dense = np.stack(columns)
    errors = np.repeat(sizes, 16 * 32)[places]
    system = dense[:, places] + np.diag(errors**2)
    expected = np.linalg.solve(system, values.ravel()[places]) @ dense
    actual = best_estimate(b, values, observed, sizes).ravel()
    assert np.linalg.norm(actual - expected) < 0.03 * np.linalg.norm(expected)
