"""Scores computed in a forecast equal those of its written fields, on every mesh."""

import os

import jax
import numpy as np
import pytest

from credit_jax.checkpoint.run import open_run
from credit_jax.cli.commands import DIVERGED, OK, USER_ERROR
from credit_jax.cli.score import main as score
from credit_jax.config import load_config
from credit_jax.config.parallelism import parse_parallelism
from credit_jax.evaluation.scores import read_scores
from credit_jax.forecast import Forecaster
from credit_jax.forecast.campaign import score_campaign
from credit_jax.forecast.outputs import outputs_of
from credit_jax.forecast.zarr_store import ZarrStore
from credit_jax.parallel.params.precision import default_mp_policy
from credit_jax.plan.forecast import plan_forecast
from tests.forecast.tiny_run import forecast, make_run, read
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases

CASES = Cases("online_scores")

BOUND = 1e-6
# Signed metrics, and the metric that gives their scale.
SIZES = {"bias": "mae", "acc": None}
pytestmark = pytest.mark.usefixtures("tiny_model")


def worst_difference(ours, theirs):
    """Returns the largest difference of all metrics, relative to channels' scales."""
    found = {}
    for name in theirs.data_vars:
        difference = np.abs(ours[name] - theirs[name])
        size = SIZES.get(name, name)
        dims = [dim for dim in theirs[name].dims if dim != "channel"]
        scale = 1.0 if size is None else np.abs(theirs[size]).max(_dims(theirs[size]))
        assert np.array_equal(np.isnan(ours[name]), np.isnan(theirs[name])), name
        if name == "missing":
            assert float(difference.max()) == 0
            continue
        found[name] = float((difference / scale).max(dims).max())
    return found


def _dims(array):
    return [dim for dim in array.dims if dim != "channel"]


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
    world, tmp_path, config, parallelism, members, batch
):
    options = ["--parallelism", parallelism, "--members", members, "--batch", batch]
    out, online = tmp_path / "out", tmp_path / "online"
    assert forecast(config, out, *options, "--score", os.fspath(online)) == OK
    offline = ["--forecast", os.fspath(out), "--out", os.fspath(tmp_path / "offline")]
    assert score([*offline, "--cache", "none"]) == OK
    ours, theirs = read_scores(online), read_scores(tmp_path / "offline")
    assert {*ours.data_vars} == {*theirs.data_vars}
    assert ("crps" in ours) == (members != "1")
    found = worst_difference(ours, theirs)
    print(f"{parallelism}, {members} members: {max(found.values()):.1e}", found)
    assert max(found.values()) < BOUND


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
    theirs = read_scores(command)
    for name in theirs.data_vars:
        assert np.array_equal(found[name], theirs[name], equal_nan=True), name
    fields, others = read(python), read(command)
    assert all(fields[k].equals(others[k]) for k in others.data_vars)
    again = score_campaign(plan, model, weights, python, store=store)
    assert again.identical(found)


@pytest.mark.slow
def test_scores_without_fields(world, tmp_path, config, capsys):
    """No field is written; runs in parts give bitwise equal scores."""
    options = ("--format", "none", "--climatology", "none", "--regions", "tropics")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert forecast(config, whole, *options, "--score", os.fspath(whole)) == OK
    assert not (whole / "forecast.zarr").exists()
    assert {path.suffix for path in whole.rglob("*") if path.is_file()} == {
        ".json",
        ".npz",
        ".nc",
        ".csv",
        ".html",
    }
    capsys.readouterr()
    given = (*options, "--score", os.fspath(parts))
    assert forecast(config, parts, *given, "--shard", "2/2") == OK
    assert "note: scores of 2 of 5 start dates so far" in capsys.readouterr().out
    assert forecast(config, parts, *given, "--resume") == OK
    shown = capsys.readouterr().out
    assert "3 forecasts made, in" in shown
    assert "so far" not in shown
    ours, theirs = read_scores(parts), read_scores(whole)
    assert theirs.attrs["num_start_dates"] == 5
    for name in theirs.data_vars:
        assert np.array_equal(ours[name], theirs[name], equal_nan=True), name
    other = (*given, "--resume", "--regions", "europe")
    assert forecast(config, parts, *other) == USER_ERROR
    wanted = "scores.regions (['tropics'] there, ['tropics', 'europe'] here)"
    assert wanted in capsys.readouterr().err


@pytest.mark.slow
def test_values_that_are_not_finite(world, tmp_path, capsys):
    config = make_run(world, tmp_path, scale=1e38)
    out = tmp_path / "out"
    options = ("--format", "none", "--score", os.fspath(out), "--climatology", "none")
    assert forecast(config, out, *options) == DIVERGED
    assert "values that are NaN or infinite at step 1" in capsys.readouterr().err
    assert forecast(config, out, *options, "--nan", "fill") == OK
    assert "values that are not finite" in capsys.readouterr().out
    missing = read_scores(out)["missing"].sel(region="global", system="forecast")
    assert float(missing.max()) > 0


def scores_of(*options, config, tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "device_get", None)
    return lambda: forecast(config, tmp_path / "out", *options)


CASES.rows(
    scores_of,
    ("--members", "2", "--score", "there"),
    ("--format", "none"),
    ("--regions", "tropics"),
    ("--init-time", "2000-01-09T18", "--steps", "2", "--score", "there"),
    ("--score", "there", "--variables", "Z500"),
)
