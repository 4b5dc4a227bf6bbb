"""The data set of scores: writing, reading and errors."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from credit_jax.evaluation.scores import (
    BAND,
    DIMS,
    WAVENUMBER,
    _as_text,
    other_scores,
    read_scores,
    to_table,
    write_scores,
)

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
