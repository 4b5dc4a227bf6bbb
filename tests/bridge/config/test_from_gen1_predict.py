"""gen1's `predict:` becomes `inference:`; files of prediction alone are taken."""

import copy
import re
from pathlib import Path

import pandas as pd
import pytest

from credit_jax.config.load import config_of
from credit_jax.config.yaml_file import read_yaml
from credit_jax.forecast.schedule import make_schedule
from credit_torch_bridge import convert_config
from credit_torch_bridge.compare.credit_import import import_credit
from credit_torch_bridge.config.from_gen1_predict import start_dates

GEN1 = read_yaml(Path(__file__).parent / "configs/gen1.yml")
CUSTOM = {"type": "custom", "start_year": 2020, "start_month": 2, "start_day": 27}


def converted(to="jax", *, data=None, **predict):
    """The inference section and the lines of the report."""
    mapping = copy.deepcopy(GEN1)
    mapping["predict"] = predict
    mapping["data"] |= data or {}
    new, report = convert_config(mapping, to=to)
    return new["inference"], [*report.lines()]


@pytest.mark.reference
@pytest.mark.parametrize(
    "forecasts",
    [
        {**CUSTOM, "start_hours": [0, 12], "duration": 5, "days": 3},
        {**CUSTOM, "duration": 9, "ic_interval_days": 4, "days": 1},
        {**CUSTOM, "start_hours": [6], "duration": 2},
        {**CUSTOM, "type": "10day_year"},
    ],
)
@pytest.mark.parametrize("hours", [1, 6])
def test_the_dates_are_those_of_credit(credit, forecasts, hours):
    """CREDIT rolls out as many steps as there are times from start to end."""
    load = import_credit("forecast").load_forecasts
    config = {
        "predict": {"forecasts": forecasts},
        "data": {"lead_time_periods": hours},
    }
    pairs = [tuple(map(pd.Timestamp, pair)) for pair in load(config)]
    starts, length = start_dates(forecasts, pd.Timedelta(hours=hours))
    assert starts == [first for first, _ in pairs]
    for first, last in pairs:
        times = pd.date_range(first, last, freq=f"{hours}h")
        assert length == len(times) * pd.Timedelta(hours=hours)
    assert start_dates(pairs, pd.Timedelta(hours=hours)) == (starts, length)


@pytest.mark.filterwarnings("ignore:.*ignored here")
def test_the_section_forecasts_from_these_dates():
    forecasts = {**CUSTOM, "start_hours": [0, 12], "duration": 3, "days": 2}
    mapping = copy.deepcopy(GEN1) | {"predict": {"forecasts": forecasts}}
    mapping["save_loc"] = "run"
    config = config_of(convert_config(mapping, to="jax")[0])
    schedule = make_schedule(config.inference, config.data.timestep, "standard")
    starts = pd.date_range("2020-02-27", "2020-02-29T12", freq="12h")
    assert (schedule.starts == starts.values).all()
    assert schedule.num_steps == 8


def test_every_key():
    """Nothing is lost without a line."""
    encoding = {"zlib": True, "complevel": 1, "chunksizes": [1, 3, 64, 128]}
    predict = {
        "mode": "ddp",
        "batch_size": 4,
        "ensemble_size": 3,
        "forecasts": {**CUSTOM, "duration": 1, "days": 1},
        "realtime": {
            "forecast_start_time": "2026-04-01 06:00:00",
            "forecast_end_time": "2026-04-02 00:00:00",
            "forecast_timestep": "6h",
        },
        "save_vars": ["T", "rain", "T_PRES", "nothing"],
        "metadata": False,
        "save_forecast": "/out",
        "use_laplace_filter": True,
        "climatology": "clim.nc",
        "interp_pressure": {"pressure_levels": [500.0], "height_levels": [10.0]},
        "static_fields": "/data/whole.nc",
        "ua_var_encoding": encoding,
        "surface_var_encoding": {"zlib": False, "own": 1},
        "pressure_var_encoding": {"complevel": 2},
        "a_key_of_ones_own": 1,
    }
    inference, lines = converted(**predict)
    for key in predict:
        assert any(f"predict.{key}" in line for line in lines), key
    steps = inference.pop("postblocks")["per_step"]
    assert list(steps) == ["reconstruct", "geopotential", "pressure_levels"]
    args = steps["pressure_levels"]["args"]
    assert args["surface_geopotential_file"] == "/data/whole.nc"
    assert args["levels"] == [10, 60, 137]
    assert args["interp_variables"] == [f"ERA5/prognostic/3d/{v}" for v in "UVQ"]
    output = inference.pop("output")
    names = ["ERA5/prognostic/3d/T", "ERA5/diagnostic/2d/rain"]
    assert output["variables"] == [*names, "ERA5/derived_diagnostic/3d/T_PRES"]
    assert output["metadata"] == "era5.yaml"
    levels = [*"UVTQ"]
    assert output["encoding"] == {
        **dict.fromkeys(levels, encoding),
        **{name: {"zlib": False} for name in ("SP", "t2m")},
        **{f"{name}_PRES": {"complevel": 2} for name in (*levels, "Z")},
    }
    assert inference == {
        "run_mode": "batch",
        "batch_forecast": {
            "forecast_length": "1d",
            "first_init_date": "2020-02-27T00:00:00",
            "last_init_date": "2020-02-27T00:00:00",
            "init_interval": "1d",
        },
        "single_forecast": {
            "start_datetime": "2026-04-01T06:00:00",
            "forecast_length": "18h",
        },
        "save_forecast": "/out",
        "members": 3,
        "perturbation": {"type": "gaussian", "std": 0.0},
    }


@pytest.mark.parametrize(
    ("predict", "line"),
    [
        (
            {"forecasts": {**CUSTOM, "start_hours": [0, 6], "duration": 2}},
            "4 start dates that are not evenly spaced.* --init-time, with --length 10d",
        ),
        (
            {"forecasts": [["2020-01-01", "2020-01-02"], ["2020-02-01", "2020-02-04"]]},
            "2 forecasts of 2 lengths; give forecast --init-time and --length",
        ),
        ({"forecasts": {"type": "yearly"}}, "type 'yearly'; expected custom or 10day_"),
        (
            {"interp_pressure": {"q_var": "Qtot"}, "static_fields": "a.nc"},
            "needs Qtot, which the model does not predict",
        ),
        (
            {"interp_pressure": {"P0": 1e5}, "static_fields": "a.nc"},
            "P0 100000.0: gen2's blocks read a in Pa",
        ),
        ({"interp_pressure": {}}, "needs static_fields, the file with the surface"),
    ],
)
def test_what_the_section_cannot_say(predict, line):
    inference, lines = converted(**predict)
    assert not {"batch_forecast", "postblocks"} & set(inference)
    assert any(re.search(line, own) for own in lines), lines


def test_for_gen2_predict_stays():
    """Some of CREDIT's programs of gen2 read it; its blocks read no file."""
    forecasts = {**CUSTOM, "duration": 1, "days": 1}
    pressure = {"surface_geopotential_var": "orography"}
    own = {"forecasts": forecasts, "interp_pressure": pressure}
    own["static_fields"] = GEN1["data"]["save_loc_static"]
    inference, _ = converted("gen2", **own)
    args = inference["postblocks"]["per_step"]["geopotential"]["args"]
    assert args["surface_geopotential_var"] == "ERA5/static/2d/orography"
    assert "surface_geopotential_file" not in args
    own["static_fields"] = "/another.nc"
    inference, _ = converted("gen2", **own)
    assert list(inference["postblocks"]["per_step"]) == ["reconstruct"]
    mapping = copy.deepcopy(GEN1) | {"predict": own}
    assert convert_config(mapping, to="gen2")[0]["predict"].keys() == {*own, "mode"}


def test_back_to_gen1():
    """The dates, the folder and the names of the files' attributes come back."""
    forecasts = {**CUSTOM, "start_hours": [0, 12], "duration": 2, "days": 2}
    realtime = {
        "forecast_start_time": "2026-04-01 06:00:00",
        "forecast_end_time": "2026-04-02 00:00:00",
        "forecast_timestep": "6h",
    }
    predict = {"forecasts": forecasts, "realtime": realtime, "save_forecast": "/out"}
    predict["metadata"] = "cam.yaml"
    mapping = copy.deepcopy(GEN1) | {"predict": predict}
    ours, _ = convert_config(mapping, to="jax")
    gen1, _ = convert_config(ours, to="gen1")
    times = ["2020-02-27 00:00:00", "2020-02-28 18:00:00"]
    assert gen1["predict"]["forecasts"][0] == times
    assert len(gen1["predict"].pop("forecasts")) == 4
    assert gen1["predict"] == {k: v for k, v in predict.items() if k != "forecasts"}
    assert convert_config(gen1 | {"predict": predict}, to="jax")[0] == ours


@pytest.mark.filterwarnings("ignore:.*ignored here")
def test_a_file_of_prediction_alone():
    """No optimizer, no loss: `forecast` needs neither."""
    mapping = {
        key: copy.deepcopy(GEN1[key]) for key in ("seed", "data", "model", "predict")
    }
    mapping |= {"trainer": {"mode": "none", "type": "standard"}, "save_loc": "run"}
    mapping["loss"] = {"use_latitude_weights": True, "latitude_weights": "lat.nc"}
    new, report = convert_config(mapping, to="jax")
    assert not {"trainer", "loss", "predict"} & set(new)
    assert any("a config of forecasts alone" in line for line in report.lines())
    config = config_of(new, forecasts=True)
    assert config.inference.batch_forecast.forecast_length == "2d"
    again, second = convert_config(new, to="jax")
    assert again == new
    assert second.unchanged
    with pytest.raises(ValueError, match="gen1 asks for it in forecasts, too"):
        convert_config(new, to="gen1")
