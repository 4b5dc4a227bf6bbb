"""Forecasts from other data than those of training, converted by preblocks."""

import shutil

import numpy as np
import pytest
import xarray as xr
import yaml

from credit_jax.cli import score
from credit_jax.cli.commands import OK, USER_ERROR
from credit_jax.forecast.labeled import open_forecaster
from credit_jax.physics.files import read_coefficients
from tests.forecast.tiny_run import BATCH, forecast, make_run, read
from tests.support import assert_close

OTHER = "ERA5/prognostic/3d/temperature"


@pytest.mark.slow
def test_data_of_the_inference_section(world, tmp_path, tiny_model):
    config = make_run(world, tmp_path)
    assert forecast(config, tmp_path / "own") == 0
    raw = yaml.safe_load((tmp_path / "model.yml").read_text())
    for path in sorted(world.glob("w_*.nc")):
        with xr.open_dataset(path) as fields:
            own = fields[["T", "U", "SP", "tsi"]]
            own.rename(T="temperature").to_netcdf(tmp_path / path.name)
    source = raw["data"]["source"]["ERA5"]
    files = f"{tmp_path}/w_%Y.nc"
    variables = {
        "prognostic": {
            "vars_3D": ["U", "temperature"],
            "vars_2D": ["SP"],
            "path": files,
        },
        "dynamic_forcing": {"vars_2D": ["tsi"], "path": files},
        "static": source["variables"]["static"],
    }
    names = {"type": "rename", "args": {"mapping": {OTHER: "ERA5/prognostic/3d/T"}}}
    inference = {
        "batch_forecast": BATCH,
        "output": {"format": "zarr"},
        "data": {
            "source": {"ERA5": source | {"variables": variables}},
            "timestep": "6h",
        },
        "preblocks": {"per_step": {"names": names, **raw["preblocks"]["per_step"]}},
    }
    other = make_run(world, tmp_path / "other", inference=inference)
    assert forecast(other, tmp_path / "out") == 0
    ours, theirs = read(tmp_path / "out"), read(tmp_path / "own")
    assert [*ours.data_vars] == [*theirs.data_vars], "diagnostic variables, too"
    for name in theirs.data_vars:
        assert np.array_equal(ours[name], theirs[name], equal_nan=True), name


def test_channels_in_another_order(world, tmp_path, tiny_model, capsys):
    make_run(world, tmp_path)
    data = yaml.safe_load((tmp_path / "model.yml").read_text())["data"]
    data["source"]["ERA5"]["variables"]["prognostic"]["vars_3D"].reverse()
    inference = {"batch_forecast": BATCH, "data": data}
    config = make_run(world, tmp_path / "other", inference=inference)
    assert forecast(config, tmp_path / "out") == USER_ERROR
    keys = [f"ERA5/prognostic/3d/{name}" for name in ("T", "U")]
    error = capsys.readouterr().err
    assert f"the model was trained with: {keys[0]}" in error
    assert f"expected {', '.join(keys[::-1])}" in error


@pytest.mark.slow
def test_data_on_other_levels(world, tmp_path, tiny_model, capsys):
    """Brought to those of the model, in the initial state, too, and not scored."""
    make_run(world, tmp_path)
    raw = yaml.safe_load((tmp_path / "model.yml").read_text())
    source = raw["data"]["source"]["ERA5"]
    of_data, of_model = [100, 120, 137], [110, 130]
    args = {
        "variables": ["ERA5/prognostic/3d/T", "ERA5/prognostic/3d/U"],
        "surface_pressure_var": "ERA5/prognostic/2d/SP",
        "source_level_info_file": "ERA5_Lev_Info.nc",
        "source_levels": of_data,
        "dest_levels": of_model,
    }
    levels = {"levels": {"type": "hybrid_level_interp", "args": args}}
    date = "2000-01-01"
    inference = {
        "batch_forecast": {
            "forecast_length": "12h",
            "first_init_date": date,
            "last_init_date": date,
            "init_interval": "12h",
        },
        "output": {"format": "zarr"},
        "data": raw["data"] | {"source": {"ERA5": source | {"levels": None}}},
        "preblocks": {"per_step": {**levels, **raw["preblocks"]["per_step"]}},
    }
    other = make_run(world, tmp_path / "other", inference=inference)
    assert forecast(other, tmp_path / "out") == OK
    store = read(tmp_path / "out")
    assert store.level.values.tolist() == source["levels"], "those of the training"
    with xr.open_dataset(world / "w_2000.nc") as fields:
        given = fields.sel(time=date + "T00").load()
    start = store.isel(time=0, prediction_timedelta=0)
    for name in ("T", "U"):
        expected = interpolated(
            given[name].values, given["SP"].values, of_data, of_model
        )
        assert_close(start[name].values, expected, 1e-5, name)
    assert np.isfinite(store.isel(prediction_timedelta=slice(1, None)).to_array()).all()

    options = ["--forecast", str(tmp_path / "out"), "--out", str(tmp_path / "scores")]
    capsys.readouterr()
    assert score.main([*options, "--climatology", "none", "--cache", "none"]) == OK
    text = " ".join(capsys.readouterr().out.split())
    assert "T, U are on other levels than the forecasts" in text
    run = tmp_path / "other" / "run"
    shutil.copyfile(other, run / "model.yml")
    (step,) = open_forecaster(run)(given.expand_dims("time"), 1)
    first = store.isel(time=0, prediction_timedelta=1)
    assert step.level.values.tolist() == source["levels"]
    for name in ("T", "U", "SP"):
        assert_close(step[name].values[0], first[name].values, 1e-6, name)


def interpolated(field, pressure, source, dest):
    """Columns (level, lat, lon) on other levels of ERA5, by numpy."""
    a, b = (
        x[:, None, None]
        for x in read_coefficients("ERA5_Lev_Info.nc", "a_half", "b_half")
    )
    half = a + b * pressure
    center = np.log(0.5 * (half[1:] + half[:-1]))
    known, points = (center[[k - 1 for k in numbers]] for numbers in (source, dest))
    new = np.empty(points.shape)
    for place in np.ndindex(pressure.shape):
        at = (slice(None), *place)
        new[at] = np.interp(points[at], known[at], field[at])
    return new
