"""The data set of scores: writing, reading and errors."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from rich.console import Console

from credit_jax.evaluation.scores import (
    BAND,
    DIMS,
    WAVENUMBER,
    _as_text,
    other_scores,
    read_scores,
    score_table,
    to_table,
    write_scores,
)
from credit_jax.io.netcdf import attribute_value
from credit_jax.io.tables import print_table
from tests.visualization.synthetic import make_scores

LEADS = np.array([6, 12], "timedelta64[h]").astype("timedelta64[ns]")


def some_scores() -> xr.Dataset:
    rng = np.random.default_rng(0)
    rmse, spectrum = rng.random((2, 2, 1, 2)), rng.random((2, 2, 1, 2, 4))
    rmse[1, 0, 0, 0] = np.nan
    coords = {
        "system": ["forecast", "persistence"],
        "channel": ["T500", "t2m"],
        "variable": ("channel", ["T", "t2m"]),
        "level": ("channel", [500.0, np.nan]),
        "units": ("channel", ["K", "K"]),
        "long_name": ("channel", ["temperature", ""]),
        "region": ["global"],
        "prediction_timedelta": LEADS,
        BAND: ["global"],
        WAVENUMBER: np.arange(4),
    }
    arrays = {
        "rmse": (DIMS, rmse),
        "acc": (DIMS, 1 - rmse),
        "energy_spectrum": (("system", "channel", BAND, DIMS[3], WAVENUMBER), spectrum),
    }
    return xr.Dataset(arrays, coords, {"num_members": 1})


def test_scores_are_written_and_read(tmp_path):
    scores = some_scores()
    path, table = write_scores(scores, tmp_path / "report")
    for place in (path, tmp_path / "report"):
        xr.testing.assert_identical(read_scores(place), scores)
    rows = pd.read_csv(table)
    assert len(rows) == 14, "two metrics of eight values, one of each missing"
    own = rows.query("metric == 'acc' and system == 'forecast' and channel == 'T500'")
    assert own["lead_hours"].tolist() == [6, 12]
    assert own["level"].tolist() == [500, 500]
    assert own["level_units"].isna().all(), "unknown"
    named = scores.assign_coords(level_units=("channel", ["hPa", ""]))
    assert set(to_table(named).query("channel == 'T500'")["level_units"]) == {"hPa"}
    assert own["units"].astype(str).tolist() == ["1", "1"]
    assert np.allclose(own["value"], scores["acc"][0, 0, 0], rtol=1e-6)


def test_what_is_no_data_set_of_scores(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"scores[.]nc does not exist"):
        read_scores(tmp_path)
    other = some_scores().rename(rmse="speed")
    with pytest.raises(ValueError, match="unknown metrics: speed"):
        write_scores(other, tmp_path)
    turned = some_scores().transpose("region", ...)
    with pytest.raises(ValueError, match="rmse has the dims"):
        write_scores(turned, tmp_path)


def test_names_are_no_formulas():
    cells = {
        "=cmd|' /C x'!A0": "'=cmd|' /C x'!A0",
        "T\x1b[2J": "T\\x1b[2J",
        "T500": "T500",
        -1.5: -1.5,
    }
    assert {cell: _as_text(cell) for cell in cells} == cells


def test_scores_of_other_forecasts_are_seen(tmp_path):
    scores = some_scores()
    about = {"forecast": str(tmp_path / "f"), "truth": "t.nc"}
    assert other_scores(tmp_path, about) == "", "there are none"
    write_scores(scores.assign_attrs(about), tmp_path)
    assert other_scores(tmp_path, about) == ""
    store = {**about, "forecast": str(tmp_path / "f/forecast.zarr")}
    assert other_scores(tmp_path, store) == "", "of the same forecasts"
    assert "truth: t.nc" in other_scores(tmp_path, {**about, "truth": "u.nc"})
    assert "forecast: " in other_scores(tmp_path, {**about, "forecast": "g"})
    (tmp_path / "scores.nc").unlink()
    assert "scores.csv" in other_scores(tmp_path, about)


def test_attributes_of_every_kind_can_be_written(tmp_path):
    """NetCDF has no booleans: the record of the forecast of a training has one."""
    scores = some_scores()
    for name, value in {"report": True, "dates": [["a", "b"]], "no": None}.items():
        scores.attrs[name] = attribute_value(value)
    write_scores(scores.assign_attrs(count=attribute_value(3)), tmp_path)
    found = read_scores(tmp_path).attrs
    assert found["report"] == "true"
    assert found["dates"] == '[["a", "b"]]'
    assert found["no"] == "null"
    assert found["count"] == 3


def printed(scores):
    console = Console(width=20)
    with console.capture() as text:
        print_table(score_table(scores), console)
    return text.get().splitlines()


def test_numbers_have_units_and_say_over_how_many_levels_they_are():
    scores = make_scores(levels=(250.0, 500.0, 850.0), num_days=2)
    assert score_table(scores).title == (
        "RMSE, global, 12 start dates; root mean square over the levels"
    )
    units = scores["units"].astype(object)
    units[scores["variable"] == "U"] = "m s**-1"
    lines = printed(scores.assign_coords(units=units))
    assert any("m s⁻¹" in line for line in lines)
    heads = [line[:13].strip() for line in lines]
    place = heads.index("T")
    assert heads[place + 1 : place + 3] == ["K", "3 levels"]
    place_of_sp = heads.index("SP")
    assert heads[place_of_sp + 1 : place_of_sp + 3] == ["Pa", ""], "one level"
    only = printed(scores.sel(system=["forecast"]))
    assert any(line.startswith("  T, K, 3 levels") for line in only)
    own = scores["rmse"].sel(system="forecast", region="global")
    own = own.sel(channel=["T250", "T500", "T850"])
    mean = np.sqrt((own**2).mean("channel")).values
    assert lines[place].split()[-4:] == [f"{float(f'{value:.3g}'):g}" for value in mean]


def test_without_levels_nothing_is_said_of_them():
    scores = make_scores(levels=(500.0,), num_days=1)
    assert score_table(scores).title == "RMSE, global, 12 start dates"


def test_dates_of_the_training_are_said_to_be_so():
    scores = make_scores(levels=(500.0,), num_days=1)
    for seen in ("none", "unknown"):
        title = score_table(scores.assign_attrs(training_dates=seen)).title
        assert title == "RMSE, global, 12 start dates"
    seen = "5 of 9 dates are in the training period (2000 to 2001), and not held out"
    title = score_table(scores.assign_attrs(training_dates=seen)).title
    assert title == f"RMSE, global, 12 start dates; {seen}"
    assert set(to_table(scores)["training_dates"]) == {"unknown"}
    table = to_table(scores.assign_attrs(training_dates=seen))
    assert set(table["training_dates"]) == {"5 of 9 dates"}


def test_names_of_files_are_neither_markup_nor_escapes():
    hostile = "[/]\x1b[2J[bold]T"
    scores = make_scores(levels=(500.0,), num_days=1)
    names = [hostile if name == "T" else name for name in scores["variable"].values]
    scores = scores.assign_coords(variable=("channel", names))
    (line,) = [line for line in printed(scores) if "[bold]T" in line]
    assert "[/]\\x1b[2J[bold]T" in line
    assert "\x1b" not in line
