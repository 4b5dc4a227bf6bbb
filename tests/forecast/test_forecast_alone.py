"""Configs that forecast and train nothing: no loss, no trainer, a start date alone."""

import pytest
import xarray as xr
import yaml

from credit_jax.cli.commands import OK, USER_ERROR
from tests.forecast.tiny_run import forecast, read

START = "1999-12-30"
LENGTH = ("--length", "12h")


@pytest.fixture
def alone(config, tmp_path):
    """Writes the config without training, its data changed; returns the path."""
    with open(config) as file:
        whole = yaml.safe_load(file)

    def write(**dates):
        own = {k: v for k, v in whole.items() if k not in ("loss", "trainer")}
        own["inference"] = {"output": {"format": "zarr"}}
        gone = ("start_datetime", "end_datetime", "date_ranges", "forecast_len")
        own["data"] = {k: v for k, v in whole["data"].items() if k not in gone} | dates
        own.pop("validation_data", None)
        path = tmp_path / "alone.yml"
        path.write_text(yaml.safe_dump(own, sort_keys=False))
        return str(path)

    return write


def test_the_forecasts_are_those_of_the_whole_config(config, alone, tmp_path):
    options = ("--init-time", START, *LENGTH)
    assert forecast(config, tmp_path / "whole", *options) == OK
    assert forecast(alone(), tmp_path / "no_dates", *options) == OK
    assert forecast(alone(start_datetime=START), tmp_path / "a_start", *LENGTH) == OK
    whole = read(tmp_path / "whole").drop_attrs()
    for name in ("no_dates", "a_start"):
        xr.testing.assert_identical(read(tmp_path / name).drop_attrs(), whole)


@pytest.mark.slow
def test_scores_have_no_climatology_of_no_training(alone, tmp_path, capsys):
    path = alone(start_datetime=START)
    out, scores = tmp_path / "out", tmp_path / "scores"
    assert forecast(path, out, *LENGTH, "--score", str(scores)) == OK
    shown = capsys.readouterr().out
    assert "persistence" in shown
    assert "climatology" not in (scores / "scores.csv").read_text()


def test_other_keys_are_still_checked(alone, tmp_path, capsys):
    path = alone(start_datetime=START, timestep="soon")
    assert forecast(path, tmp_path / "out") == USER_ERROR
    assert "data.timestep: must be a positive duration" in capsys.readouterr().err
    assert forecast(alone(), tmp_path / "out") == USER_ERROR
    assert "batch_forecast: missing" in capsys.readouterr().err
