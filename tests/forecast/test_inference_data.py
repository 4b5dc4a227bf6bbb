"""Forecasts from other data than those of training, converted by preblocks."""

import numpy as np
import xarray as xr
import yaml

from credit_jax.cli.commands import USER_ERROR
from tests.forecast.tiny_run import BATCH, forecast, make_run, read

OTHER = "ERA5/prognostic/3d/temperature"


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
