"""The demo of assimilation: its observations, what it reads, when it fails."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from benchmarks import assimilation_demo
from benchmarks.assimilation_demo import VARIABLES, main, observe

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


@pytest.mark.slow
def test_the_report(data, tmp_path, monkeypatch):
    runs, out = tmp_path / "runs", tmp_path / "out"
    _runs(runs, data)
    monkeypatch.setattr(assimilation_demo, "_make", lambda folder: 90.0)
    monkeypatch.setattr(assimilation_demo, "_limit", lambda folder: {"T": (2.0, 1.0)})
    labels = ("model", "equations", "B model", "B equations")
    powers = {n: {key: [0.0, 0.7, 0.3] for key in labels} for n in ("T", "U", "V")}
    alike = {"T": [0.1, 0.2, 0.3, 0.04]}, powers
    monkeypatch.setattr(assimilation_demo, "_alike", lambda folder: alike)
    options = ["--folder", str(runs), "--out", str(out)]
    assert main(options) == 0
    text = (out / "assimilation_demo.md").read_text()
    # The first background is that of the free run.
    background = np.sqrt((16 + 9 * 4) / 10)
    row = f"| U | 4 | {background:.3g} | 1 | {1 / background:.2f} | 0.50 | 0.25 |"
    assert f"{row} 0.90 to 1.10 | 1.10 to 1.10 |" in text
    assert "| T | 2 | 1 | 0.50 |" in text
    assert "| T | 0.10 | 0.20 | 0.30 | 4.0% |" in text
    assert "The windows took 1.5 minutes" in text
    assert "is the same, bit for bit" in text
    results = json.loads((out / "assimilation_demo.json").read_text())
    assert results["errors"]["analysis"]["T"] == pytest.approx([1.0] * 10, rel=1e-4)
    assert results["mesh_difference"] == 0
    for name in ("", "_gradients"):
        assert (out / f"assimilation_demo{name}.png").stat().st_size > 5000


def test_what_differs(tmp_path):
    rng = np.random.default_rng(0)
    fields = xr.Dataset({"T": ("lat", rng.standard_normal(8))})
    for folder in ("analyses", "mesh"):
        path = tmp_path / folder / "analyses" / "a.nc"
        path.parent.mkdir(parents=True)
        fields.to_netcdf(path, engine="h5netcdf")
        fields = fields * (1 + 1e-4)
    folders = tmp_path / "mesh", tmp_path / "analyses"
    assert assimilation_demo._difference(*folders) == pytest.approx(1e-4, rel=1e-6)
    assert not assimilation_demo._same(*folders)
    assert not assimilation_demo._same(tmp_path / "none", tmp_path / "analyses")


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
