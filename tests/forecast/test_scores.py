"""Scores of the command `score`, and those that a forecast computes itself.

Their values are those of numpy: `tests.forecast.fuzz`.
"""

import contextlib
import io
import os
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr
import yaml

from credit_jax.checkpoint.run import open_run
from credit_jax.cli.commands import DIVERGED, OK, USER_ERROR
from credit_jax.config import load_config
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.evaluation.scores import read_scores
from credit_jax.forecast import Forecaster
from credit_jax.forecast.campaign import score_campaign
from credit_jax.forecast.outputs import outputs_of
from credit_jax.forecast.zarr_store import ZarrStore
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.plan.forecast import plan_forecast
from tests.forecast.fuzz import prepare
from tests.forecast.test_messages import score
from tests.forecast.tiny_run import forecast, make_run, read
from tests.training.tiny import write_yaml

BOUND = 1e-6
# Signed metrics, and the metric that gives their scale.
SIZES = {"bias": "mae", "acc": None}


def assert_same_scores(ours: xr.Dataset, theirs: xr.Dataset) -> None:
    for name in theirs.data_vars:
        assert np.array_equal(ours[name], theirs[name], equal_nan=True), name


def test_forecasts_and_scores_are_those_of_numpy(tmp_path):
    prepare(tmp_path / "plain")


@pytest.fixture(scope="module")
def scored(whole, tmp_path_factory):
    """The command's output for the store, and its scores."""
    out = tmp_path_factory.mktemp("scores")
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert score(whole, out) == OK
    return shown.getvalue(), read_scores(out)


def test_the_store_and_the_files(config, scored, tmp_path):
    shown, found = scored
    assert "RMSE, global, 5 start dates" in shown
    assert "scores.csv" in shown
    assert {*found["channel"].values} == {"U1", "U4.6", "T1", "T4.6", "SP", "TP"}
    assert found.attrs["num_start_dates"] == 5
    assert found.attrs["forecast_checkpoint_step"] == 3
    assert "training period" in found.attrs["climatology"]
    seen = "12 of 12 dates are in the training period (1999-12-28 to 2000-01-05)"
    assert found.attrs["training_dates"].startswith(seen)
    assert seen in shown.replace("\n", " ")
    assert {"acc", "activity", "energy_spectrum"} <= {*found.data_vars}
    assert forecast(config, tmp_path / "files", "--format", "netcdf") == OK
    assert score(tmp_path / "files", tmp_path / "scores") == OK
    files = read_scores(tmp_path / "scores")
    assert [*files["channel"].values] == [*found["channel"].values]
    assert_same_scores(files, found)


def test_parts_are_the_scores_of_all(whole, scored, tmp_path, capsys):
    """Those of three jobs, of which one is run twice."""
    for part in ("2/3", "1/3", "2/3", "3/3"):
        assert score(whole, tmp_path, "--shard", part) == OK
        assert ("of 5 start dates so far" in capsys.readouterr().out) == (part != "3/3")
    one, parts = scored[1], read_scores(tmp_path)
    assert parts.attrs == one.attrs
    for name in one.data_vars:
        np.testing.assert_allclose(parts[name], one[name], rtol=1e-6, err_msg=name)
    assert not list(tmp_path.glob("sums*"))


@pytest.mark.slow
def test_truth_of_a_config(run, whole, tmp_path):
    """A YAML file with a data section; dates may be left out."""
    raw = yaml.safe_load((run / "model.yml").read_text())
    data = {k: v for k, v in raw["data"].items() if "datetime" not in k}
    truth = write_yaml(tmp_path / "data.yml", {"data": data})
    none = ("--climatology", "none")
    assert score(whole, tmp_path / "own", *none) == OK
    assert score(whole, tmp_path / "given", *none, "--truth", truth) == OK
    own, given = (read_scores(tmp_path / name) for name in ("own", "given"))
    assert "acc" not in own
    assert_same_scores(given, own)


def test_dates_of_the_training_are_those_of_the_run(tmp_path, world):
    """A config of forecasts may have other dates than the run of the checkpoint."""
    config = Path(make_run(world, tmp_path))
    raw = yaml.safe_load(config.read_text())
    write_yaml(tmp_path / "run" / "model.yml", raw)
    raw["data"] |= {"start_datetime": "2000-01-06", "end_datetime": "2000-01-09"}
    write_yaml(config, raw)
    out = tmp_path / "out"
    assert forecast(str(config), out, "--init-time", "2000-01-07", "--steps", "1") == OK
    assert score(out, out, "--climatology", "none", "--regions", "global") == OK
    assert read_scores(out).attrs["training_dates"] == "none"


# Scores that a forecast computes.


def assert_close_scores(ours: xr.Dataset, theirs: xr.Dataset) -> None:
    """Compares all metrics relative to channels' scales."""
    assert {*ours.data_vars} == {*theirs.data_vars}
    assert_same_scores(ours[["missing"]], theirs[["missing"]])
    for name in {*theirs.data_vars} - {"missing"}:
        assert np.array_equal(np.isnan(ours[name]), np.isnan(theirs[name])), name
        size = SIZES.get(name, name)
        dims = [dim for dim in theirs[size or name].dims if dim != "channel"]
        scale = 1.0 if size is None else np.abs(theirs[size]).max(dims)
        error = float((np.abs(ours[name] - theirs[name]) / scale).max())
        print(f"{name}: {error:.1e}")
        assert error < BOUND, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallelism", "members", "batch"),
    [
        ("data=none,tensor=2,domain=4", "1", "2"),  # 6 rows on 4 devices
        # Each member on separate devices.
        ("data=ddp,domain=4", "2", "1"),
    ],
)
def test_online_scores_equal_those_of_the_files(
    tmp_path, config, parallelism, members, batch
):
    options = ["--parallelism", parallelism, "--members", members, "--batch", batch]
    out, online = tmp_path / "out", tmp_path / "online"
    assert forecast(config, out, *options, "--score", os.fspath(online)) == OK
    assert score(out, tmp_path / "offline") == OK
    ours, theirs = read_scores(online), read_scores(tmp_path / "offline")
    assert ("crps" in ours) == (members != "1")
    assert_close_scores(ours, theirs)


@pytest.mark.slow
def test_scores_from_python(config, tmp_path):
    """From a plan, a model and weights, with the scores and fields of the command."""
    options = ("--init-time", "2000-01-01", "--steps", "2")
    command = tmp_path / "command"
    assert forecast(config, command, *options, "--score", os.fspath(command)) == OK
    read_config = load_config(config)
    parallelism = parse_parallelism("data=none")
    given = {"num_devices": 1, "init_times": ["2000-01-01"], "num_steps": 2}
    plan = plan_forecast(read_config, parallelism, **given)
    model = plan.model.build(jax.devices()[:1], mp_policy=default_mp_policy("float32"))
    checkpoint = open_run(read_config.save_loc).restore(model)
    weights = Forecaster(model, *checkpoint).weights
    python = tmp_path / "python"
    store = ZarrStore(python, outputs_of(plan, model), plan.schedule)
    found = score_campaign(plan, model, weights, python, store=store)
    assert_same_scores(found, read_scores(command))
    fields, others = read(python), read(command)
    assert all(fields[k].equals(others[k]) for k in others.data_vars)
    again = score_campaign(plan, model, weights, python, store=store)
    assert again.identical(found)


@pytest.mark.slow
def test_scores_without_fields(tmp_path, config, capsys):
    """No field is written; runs in parts give bitwise equal scores."""
    options = ("--format", "none", "--climatology", "none", "--regions", "tropics")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert forecast(config, whole, *options, "--score", os.fspath(whole)) == OK
    assert not (whole / "forecast.zarr").exists()
    suffixes = {path.suffix for path in whole.rglob("*") if path.is_file()}
    assert suffixes == {".json", ".npz", ".nc", ".csv", ".html"}
    capsys.readouterr()
    given = (*options, "--score", os.fspath(parts))
    assert forecast(config, parts, *given, "--shard", "2/2") == OK
    assert "note: scores of 2 of 5 start dates so far" in capsys.readouterr().out
    assert forecast(config, parts, *given, "--resume") == OK
    shown = capsys.readouterr().out
    assert "3 forecasts made, in" in shown
    assert "so far" not in shown
    assert read_scores(whole).attrs["num_start_dates"] == 5
    assert_same_scores(read_scores(parts), read_scores(whole))
    other = (*given, "--resume", "--regions", "europe")
    assert forecast(config, parts, *other) == USER_ERROR
    wanted = "scores.regions (['tropics'] there, ['tropics', 'europe'] here)"
    assert wanted in capsys.readouterr().err


@pytest.mark.slow
def test_values_that_are_not_finite(world, tmp_path, capsys):
    config, out = make_run(world, tmp_path, scale=1e38), tmp_path / "out"
    options = ("--format", "none", "--score", os.fspath(out), "--climatology", "none")
    assert forecast(config, out, *options) == DIVERGED
    assert "values that are NaN or infinite at step 1" in capsys.readouterr().err
    assert forecast(config, out, *options, "--nan", "fill") == OK
    assert "values that are not finite" in capsys.readouterr().out
    missing = read_scores(out)["missing"].sel(region="global", system="forecast")
    assert float(missing.max()) > 0
