"""gen1's `predict:` becomes `inference:`; files of prediction alone are taken."""

import copy
from pathlib import Path

import pandas as pd
import pytest
import xarray as xr

from credit_jax.config.load import config_of
from credit_jax.config.yaml_file import read_yaml
from credit_jax.data.schedule import make_schedule
from credit_jax.transforms.filters import LaplaceFilter
from credit_torch_bridge import convert_config
from credit_torch_bridge.compare.jax_side import import_credit
from credit_torch_bridge.config.from_gen1_predict import start_dates
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.physics.runs import build
from tests.support import assert_close
from tests.transforms.test_full_levels import (
    HEIGHTS,
    LEVELS,
    PHIS,
    columns,
    credit_fields,
    theirs_of,
)

CASES = Cases("gen1_predict")

GEN1 = read_yaml(Path(__file__).parent / "configs/gen1.yml")
CUSTOM = {"type": "custom", "start_year": 2020, "start_month": 2, "start_day": 27}


def converted(**predict):
    """The inference section and the lines of the report."""
    mapping = copy.deepcopy(GEN1)
    mapping["predict"] = predict
    new, report = convert_config(mapping, to="jax")
    return new["inference"], [*report.lines()]


@pytest.mark.reference
@pytest.mark.parametrize(
    "forecasts",
    [
        {**CUSTOM, "start_hours": [0, 12], "duration": 5, "days": 3},
        {**CUSTOM, "duration": 9, "ic_interval_days": 4, "days": 1},
        {**CUSTOM, "start_hours": [6], "duration": 2},
        {**CUSTOM, "days": 1},
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
    schedule = make_schedule(config.inference, config.data.time_step, "standard")
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
        "save_vars": ["T", "rain", "T_PRES", "P_HEIGHT", "nothing"],
        "metadata": False,
        "save_forecast": "/out",
        "use_laplace_filter": True,
        "climatology": "clim.nc",
        "interp_pressure": {
            "pressure_levels": [500.0],
            "height_levels": [10.0],
            "verbose": 0,
        },
        "static_fields": "/data/whole.nc",
        "ua_var_encoding": encoding,
        "surface_var_encoding": {"zlib": False, "own": 1},
        "pressure_var_encoding": {"complevel": 2},
        "height_var_encoding": {"complevel": 3},
        "a_key_of_ones_own": 1,
    }
    inference, lines = converted(**predict)
    for key in predict:
        assert any(f"predict.{key}" in line for line in lines), key
    steps = inference.pop("postblocks")["per_step"]
    assert list(steps) == ["reconstruct", "pressure_levels"]
    args = steps["pressure_levels"]["args"]
    assert args["surface_geopotential_file"] == "/data/whole.nc"
    assert args["levels"] == [10, 60, 137]
    assert args["interp_fields"] == [f"ERA5/prognostic/3d/{v}" for v in "UVTQ"]
    assert args["height_levels"] == [10.0]
    output = inference.pop("output")
    names = ["ERA5/prognostic/3d/T", "ERA5/diagnostic/2d/rain"]
    derived = [f"ERA5/derived_diagnostic/3d/{name}" for name in ("T_PRES", "P_HEIGHT")]
    assert output["variables"] == [*names, *derived]
    assert output["metadata"] == "era5.yaml"
    levels = [*"UVTQ"]
    assert output["encoding"] == {
        **dict.fromkeys(levels, encoding),
        **{name: {"zlib": False} for name in ("SP", "t2m")},
        **{f"{name}_PRES": {"complevel": 2} for name in levels},
        **{f"{name}_HEIGHT": {"complevel": 3} for name in levels},
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


FIELDS = {"levels": 16, "channels": 4, "surface_channels": 7}


def filtered():
    """A gen1 config with the channels that gen1's Laplace filter counts on."""
    mapping = copy.deepcopy(GEN1)
    single = ["SP", "t2m", "V500", "U500", "T500", "Z500", "Q500"]
    mapping["data"] |= {
        "surface_variables": single,
        "diagnostic_variables": [],
        "level_ids": [*range(10, 90, 10), *range(95, 135, 5)],
    }
    mapping["model"] |= FIELDS | {"output_only_channels": 0}
    mapping["predict"] = {"use_laplace_filter": True}
    return mapping


@pytest.mark.reference
def test_the_laplace_filter_filters_what_credit_filters(credit, torch, monkeypatch):
    """Each channel has the function and the number of steps that CREDIT's code says."""
    new, report = convert_config(filtered(), to="jax")
    (block,) = [
        step
        for step in new["inference"]["postblocks"]["per_step"].values()
        if step["type"] == "laplace_filter"
    ]
    assert any("rollout_to_netcdf does not filter" in own for own in report.lines())
    args = LaplaceFilter.model_validate(block["args"])
    ours = {}
    for wind in args.winds:
        ours |= {wind.u: ("u", wind.steps), wind.v: ("v", wind.steps)}
    for group in args.scalars:
        ours |= dict.fromkeys(group.variables, (group.strength, group.steps))
    kind = import_credit("pol_lapdiff_filt").Diffusion_and_Pole_Filter
    theirs = object.__new__(kind)
    theirs.device = "cpu"
    # Each function leaves its number in the channel that it gets.
    marks = {"V2": 100, "V1": 200, "QV1": 300}

    def wind(u, v, substeps):
        return 0 * u + 100 + substeps, 0 * v + 150 + substeps

    monkeypatch.setattr(theirs, "polefilt_lap2d_V2", wind, raising=False)
    for name in ("V1", "QV1"):
        monkeypatch.setattr(
            theirs,
            f"polefilt_lap2d_{name}",
            lambda x, substeps, mark=marks[name]: 0 * x + mark + substeps,
            raising=False,
        )
    found = theirs.diff_lap2d_filt(torch.zeros(71, 1, 1))[:, 0, 0].int().tolist()
    names = [name for name in "UVTQ" for _ in range(16)]
    names += filtered()["data"]["surface_variables"]
    numbers = {"u": 100, "v": 150, 1e8: 200, 0.5e8: 300}
    for name, number in zip(names, found, strict=True):
        kind, steps = ours.get(
            f"ERA5/prognostic/{'3d' if name in 'UVTQ' else '2d'}/{name}", (None, 0)
        )
        assert number == numbers.get(kind, 0) + steps, name


@pytest.mark.reference
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "section",
    [
        {"pressure_levels": [300.0, 1000.0], "height_levels": [50.0, 2e3]},
        {"interp_fields": ["T", "U"], "pres_ending": "_P", "geopotential_var": "GEO"},
    ],
)
def test_the_fields_on_pressure_levels_are_those_of_credit(credit, section, tmp_path):
    """The block of the converted section beside CREDIT's function with gen1's."""
    tree = columns()
    path = str(tmp_path / "whole.nc")
    ground = tree["ic_raw"]["S"][PHIS][0, 0, 0]
    coords = {"latitude": HEIGHTS, "longitude": [*range(ground.shape[1])]}
    field = {"Z_GDS4_SFC": (("latitude", "longitude"), ground)}
    xr.Dataset(field, coords).to_netcdf(path)
    predict = {"interp_pressure": section, "static_fields": path}
    mapping = copy.deepcopy(GEN1) | {"predict": predict}
    mapping["data"]["level_ids"] = [*LEVELS]
    mapping["model"]["levels"] = len(LEVELS)
    inference = convert_config(mapping, to="jax")[0]["inference"]
    block = inference["postblocks"]["per_step"]["pressure_levels"]
    fields = {
        key.replace("S/", "ERA5/"): x for key, x in tree["y_processed"]["S"].items()
    }
    ours = build(block["type"], block["args"])({"y_processed": {"ERA5": fields}}, None)
    made = {
        key.split("/")[-1]: x
        for key, x in ours["y_processed"]["ERA5"].items()
        if "derived" in key
    }
    theirs, inner = credit_fields(tree, **section)
    assert made.keys() == set(theirs.data_vars)
    for name, own in made.items():
        assert_close(own, theirs_of(name, theirs, inner), 1e-12, name)


@pytest.mark.parametrize(("name", "is_input"), [("mask", True), ("Z", False)])
def test_ground_of_the_static_file(name, is_input):
    """It is read again if it is none of the fields that the data have of this file."""
    interp = {"surface_geopotential_var": name}
    inference, _ = converted(interp_pressure=interp, static_fields="/data/static.nc")
    args = inference["postblocks"]["per_step"]["pressure_levels"]["args"]
    assert args["surface_geopotential_var"] == f"ERA5/static/2d/{name}"
    assert ("surface_geopotential_file" not in args) == is_input


def cannot_say(predict):
    inference, lines = converted(**predict)
    assert not {"batch_forecast", "postblocks"} & set(inference)
    return [line for line in lines if "predict" in line]


CASES.rows(
    cannot_say,
    ({"forecasts": {**CUSTOM, "start_hours": [0, 6], "duration": 2}},),
    ({"forecasts": [["2020-01-01", "2020-01-02"], ["2020-02-01", "2020-02-04"]]},),
    ({"forecasts": {"type": "yearly"}},),
    ({"interp_pressure": {"q_var": "Qtot"}, "static_fields": "a.nc"},),
    ({"use_laplace_filter": True},),
    ({"interp_pressure": {}},),
)


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
