"""gen1's `predict:` beside CREDIT's code: dates, filters and pressure levels."""

import pandas as pd
import pytest
import xarray as xr

from credit_jax.transforms.filters import LaplaceFilter
from credit_torch_bridge import convert_config
from credit_torch_bridge.compare.jax_side import import_credit
from credit_torch_bridge.config.from_gen1_predict import start_dates
from tests.bridge.config.conversions import config_of
from tests.physics.runs import build
from tests.support import assert_close
from tests.transforms import test_full_levels

pytestmark = pytest.mark.reference

CUSTOM = {"type": "custom", "start_year": 2020, "start_month": 2, "start_day": 27}


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


def filtered():
    """A gen1 config with the channels that gen1's Laplace filter counts on."""
    mapping = config_of("gen1", "-predict; predict.use_laplace_filter=true")
    single = ["SP", "t2m", "V500", "U500", "T500", "Z500", "Q500"]
    levels = [*range(10, 90, 10), *range(95, 135, 5)]
    mapping["data"] |= {"surface_variables": single, "level_ids": levels}
    mapping["data"]["diagnostic_variables"] = []
    mapping["model"] |= {"levels": 16, "channels": 4, "surface_channels": 7}
    mapping["model"]["output_only_channels"] = 0
    return mapping


def test_the_laplace_filter_filters_what_credit_filters(credit, torch, monkeypatch):
    """Each channel has the function and the number of steps that CREDIT's code says."""
    new, report = convert_config(filtered(), to="jax")
    steps = new["inference"]["postblocks"]["per_step"].values()
    (block,) = [step for step in steps if step["type"] == "laplace_filter"]
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
    tree = test_full_levels.columns()
    path = str(tmp_path / "whole.nc")
    ground = tree["ic_raw"]["S"][test_full_levels.PHIS][0, 0, 0]
    coords = {
        "latitude": test_full_levels.HEIGHTS,
        "longitude": [*range(ground.shape[1])],
    }
    field = {"Z_GDS4_SFC": (("latitude", "longitude"), ground)}
    xr.Dataset(field, coords).to_netcdf(path)
    predict = {"interp_pressure": section, "static_fields": path}
    mapping = config_of("gen1") | {"predict": predict}
    mapping["data"]["level_ids"] = [*test_full_levels.LEVELS]
    mapping["model"]["levels"] = len(test_full_levels.LEVELS)
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
    theirs, inner = test_full_levels.credit_fields(tree, **section)
    assert made.keys() == set(theirs.data_vars)
    for name, own in made.items():
        assert_close(own, test_full_levels.theirs_of(name, theirs, inner), 1e-12, name)
