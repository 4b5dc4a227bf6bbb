"""The command `score`: every layout, every kind of truth, errors."""

import contextlib
import io
import os

import numpy as np
import pytest
import xarray as xr
import yaml

from credit_jax.cli.commands import OK, USER_ERROR
from credit_jax.cli.score import main
from credit_jax.evaluation.scores import read_scores
from tests.data.world import make_fields
from tests.forecast.tiny_run import forecast, make_run, read

BOUND = 1e-6
LENGTH = ("--length", "18h")


@pytest.fixture(scope="module")
def made(world, tmp_path_factory):
    """A config and its forecasts, as a Zarr store and as NetCDF files."""
    with pytest.MonkeyPatch.context() as patch:
        register(patch)
        folder = tmp_path_factory.mktemp("made")
        config = make_run(world, folder)
        assert forecast(config, folder / "zarr") == OK
        assert forecast(config, folder / "netcdf", "--format", "netcdf") == OK
    return folder


@pytest.fixture(scope="module")
def scored(made):
    """The command's output for the store, and the folder of its scores."""
    with pytest.MonkeyPatch.context() as patch:
        register(patch)
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            assert score(made / "zarr", made / "scores") == OK
    return shown.getvalue(), made / "scores"


def register(patch):
    from credit_jax.models import registry
    from tests.training.tiny import Tiny, TinyConfig

    entry = registry.ModelEntry(TinyConfig, Tiny)
    patch.setitem(registry.MODELS, "tiny", entry)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    register(monkeypatch)


def score(where, out, *arguments):
    """Runs the command; returns its exit code."""
    fixed = ["--forecast", os.fspath(where), "--out", os.fspath(out)]
    return main([*fixed, "--cache", "none", *arguments])


def expected_rmse(store, truth, name, lead):
    """Returns the area-weighted RMSE of a variable over all start dates, by level."""
    own = store[name].isel(prediction_timedelta=lead)
    valid = store["time"] + store["prediction_timedelta"][lead]
    target = truth[name].sel(time=valid.values).values
    if target.ndim == 4:
        target = target[:, [0, 2]]
    weights = np.cos(np.deg2rad(truth["latitude"]))
    square = np.square(own.values.astype(float) - target.astype(np.float32))
    rows = square.mean(axis=(0, -1)) * weights.values
    return np.sqrt(rows.sum(axis=-1) / weights.values.sum())


def test_the_store_and_the_files(made, scored, tmp_path):
    """Both have the errors of the written fields."""
    shown, folder = scored
    assert "RMSE, global, 5 start dates" in shown
    assert "scores.csv" in shown
    found = read_scores(folder)
    store, truth = read(made / "zarr"), make_fields()
    labels = {"T": ["T1", "T4.6"], "SP": ["SP"], "TP": ["TP"]}
    for name, channels in labels.items():
        for lead in (1, 3):
            theirs = expected_rmse(store, truth, name, lead)
            own = found["rmse"].sel(system="forecast", region="global")
            own = own.sel(channel=channels).isel(prediction_timedelta=lead - 1)
            assert np.allclose(own, theirs, rtol=BOUND), (name, lead)
    assert found.attrs["num_start_dates"] == 5
    assert found.attrs["forecast_checkpoint_step"] == 3
    assert "training period" in found.attrs["climatology"]
    seen = "12 of 12 dates are in the training period (1999-12-28 to 2000-01-05)"
    assert found.attrs["training_dates"].startswith(seen)
    assert seen in shown.replace("\n", " ")
    assert {"acc", "activity", "energy_spectrum"} <= {*found.data_vars}
    assert score(made / "netcdf", tmp_path / "netcdf") == OK
    files = read_scores(tmp_path / "netcdf")
    assert [*files["channel"].values] == [*found["channel"].values]
    for name in found.data_vars:
        assert np.array_equal(files[name], found[name], equal_nan=True), name


def test_parts_are_the_scores_of_all(made, scored, tmp_path, capsys):
    """Those of three jobs, of which one is run twice."""
    out = tmp_path / "parts"
    for part in ("2/3", "1/3", "2/3", "3/3"):
        assert score(made / "zarr", out, "--shard", part) == OK
        assert ("of 5 start dates so far" in capsys.readouterr().out) == (part != "3/3")
    one, parts = read_scores(scored[1]), read_scores(out)
    assert parts.attrs == one.attrs
    for name in one.data_vars:
        np.testing.assert_allclose(parts[name], one[name], rtol=1e-6), name
    assert not list(out.glob("sums*"))


def test_baselines(made, scored):
    found, truth = read_scores(scored[1]), make_fields()
    store = read(made / "zarr")
    store["SP"][:] = truth["SP"].sel(time=store["time"].values).values[:, None]
    theirs = expected_rmse(store, truth, "SP", 2)
    own = found["rmse"].sel(system="persistence", region="global", channel="SP")
    assert np.allclose(own[1], theirs, rtol=BOUND)
    # 6-hourly means of the training period, which is within one season.
    period = truth["SP"].sel(time=slice("1999-12-28", "2000-01-05T00")).astype(float)
    means = period.groupby("time.hour").mean().astype(np.float32)
    valid = store["time"] + store["prediction_timedelta"][2]
    store["SP"][:] = means.sel(hour=valid.dt.hour).values[:, None]
    theirs = expected_rmse(store, truth, "SP", 2)
    own = found["rmse"].sel(system="climatology", region="global", channel="SP")
    assert np.allclose(own[1], theirs, rtol=BOUND)


@pytest.mark.slow
def test_truth_and_climatology_of_files(made, tmp_path, world):
    """A Zarr store with another order of dims, and WeatherBench's climatology."""
    truth = make_fields()
    levels = np.array([1.0, 4.6])
    picked = truth.isel(level=[2, 0]).assign_coords(level=levels[::-1])
    other = picked.isel(latitude=slice(None, None, -1), longitude=slice(None, None, -1))
    other.astype(np.float32).to_zarr(tmp_path / "truth.zarr", consolidated=False)
    hours, days = np.arange(0, 24, 6), np.arange(1, 367)
    mean = picked.mean("time").expand_dims(hour=hours, dayofyear=days)
    mean = mean[["T", "SP", "TP"]].rename(T="T_mean")
    mean.astype(np.float32).to_netcdf(tmp_path / "climatology.nc", engine="h5netcdf")
    options = ("--climatology", os.fspath(tmp_path / "climatology.nc"))
    options += ("--variables", "T,SP,TP", "--regions", "tropics")
    options += ("--truth", os.fspath(tmp_path / "truth.zarr"))
    assert score(made / "zarr", tmp_path / "out", *options) == OK
    found = read_scores(tmp_path / "out")
    assert [*found["region"].values] == ["global", "tropics"]
    assert [*found["variable"].values] == ["T", "T", "SP", "TP"]
    assert score(made / "zarr", tmp_path / "own", "--climatology", "none") == OK
    own = read_scores(tmp_path / "own").sel(channel=found["channel"])
    for system in ("forecast", "persistence"):
        pair = [x["rmse"].sel(system=system, region="global") for x in (found, own)]
        assert np.allclose(*pair, rtol=BOUND), system
    assert "acc" not in own
    store = read(made / "zarr")
    store["T"][:] = mean["T_mean"].isel(hour=0, dayofyear=0, level=[1, 0]).values
    theirs = expected_rmse(store, truth, "T", 1)
    ours = found["rmse"].sel(system="climatology", region="global")
    ours = ours.sel(channel=["T1", "T4.6"])
    assert np.allclose(ours.isel(prediction_timedelta=0), theirs, rtol=BOUND)


@pytest.mark.slow
def test_truth_of_a_config(made, tmp_path, capsys):
    """A YAML file with a data section; dates may be left out."""
    assert score(made / "zarr", tmp_path / "own", "--climatology", "none") == OK
    raw = yaml.safe_load((made / "model.yml").read_text())
    data = {k: v for k, v in raw["data"].items() if "datetime" not in k}
    for name, section in (("data.yml", {"data": data}), ("no.yml", {"model": {}})):
        (tmp_path / name).write_text(yaml.safe_dump(section))
    given = ("--climatology", "none", "--truth", os.fspath(tmp_path / "data.yml"))
    assert score(made / "zarr", tmp_path / "given", *given) == OK
    pair = [read_scores(tmp_path / name) for name in ("own", "given")]
    assert all(pair[0][name].equals(pair[1][name]) for name in pair[0].data_vars)
    capsys.readouterr()
    given = ("--truth", os.fspath(tmp_path / "no.yml"))
    assert score(made / "zarr", tmp_path / "none", *given) == USER_ERROR
    assert "has no data section" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        (lambda x: x.sel(time=slice("2000-01-01", None)), (), "lacks 8 of 12 times"),
        (lambda x: x.isel(latitude=slice(1, None)), (), "not the same places"),
        (lambda x: x.assign_coords(level=[10.0, 20.0, 50.0]), (), "no level of "),
        (lambda x: x.rename(T="t", U="u", SP="sp", TP="tp"), (), "none is in both"),
        (lambda x: x, ("--variables", "V"), "V: not in both; the forecast has"),
        (lambda x: x, ("--regions", "atlantis"), "atlantis: not known"),
        (lambda x: x, ("--members", "3"), "--members must be from 1 to 1"),
    ],
)
def test_what_cannot_be_compared(made, tmp_path, capsys, changes, options, message):
    changes(make_fields()).to_netcdf(tmp_path / "truth.nc", engine="h5netcdf")
    given = ("--truth", os.fspath(tmp_path / "truth.nc"), *options)
    assert score(made / "zarr", tmp_path / "out", *given) == USER_ERROR
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_units_that_differ(made, tmp_path, capsys):
    truth = make_fields()
    truth["T"].attrs["units"] = "m"
    truth.to_netcdf(tmp_path / "truth.nc", engine="h5netcdf")
    with xr.open_dataset(made / "zarr/forecast.zarr") as store:
        warm = store.load()
    warm["T"].attrs["units"] = "K"
    warm.to_zarr(tmp_path / "other.zarr", consolidated=False)
    given = ("--truth", os.fspath(tmp_path / "truth.nc"))
    assert score(tmp_path / "other.zarr", tmp_path / "out", *given) == USER_ERROR
    assert "T is in 'm', expected 'K' as in" in capsys.readouterr().err


def test_forecasts_that_are_not_finished(made, tmp_path, world, capsys):
    config = make_run(world, tmp_path)
    assert forecast(config, tmp_path / "out", "--shard", "1/2") == OK
    assert score(tmp_path / "out", tmp_path / "scores") == USER_ERROR
    assert "2 of 5 forecasts in" in capsys.readouterr().err


@pytest.mark.slow(but=["2000-01-07-none"])
@pytest.mark.parametrize(
    ("start", "seen"),
    [
        ("2000-01-01", "2 of 2 dates are in the training period (1999-12-28 to 2000-0"),
        ("2000-01-07", "none"),
    ],
)
def test_dates_of_the_training_are_those_of_the_run(tmp_path, world, start, seen):
    """A config of forecasts may have other dates than the run of the checkpoint."""
    config = make_run(world, tmp_path)
    raw = yaml.safe_load((tmp_path / "model.yml").read_text())
    (tmp_path / "run" / "model.yml").write_text(yaml.safe_dump(raw, sort_keys=False))
    raw["data"] |= {"start_datetime": "2000-01-06", "end_datetime": "2000-01-09"}
    (tmp_path / "model.yml").write_text(yaml.safe_dump(raw, sort_keys=False))
    same = ("--init-time", start, "--steps", "1")
    assert forecast(config, tmp_path / "out", *same) == OK
    options = ("--climatology", "none", "--regions", "global")
    assert score(tmp_path / "out", tmp_path / "scores", *options) == OK
    assert read_scores(tmp_path / "scores").attrs["training_dates"].startswith(seen)


@pytest.mark.slow
def test_what_the_forecast_ignored_is_not_said_again(tmp_path, world, capsys):
    """CREDIT's configs have `inference.mode`, which was noted by `forecast`."""
    output = {"format": "zarr"}
    config = make_run(world, tmp_path, inference={"mode": "none", "output": output})
    same = ("--init-time", "2000-01-01", "--steps", "1")
    assert forecast(config, tmp_path / "out", *same) == OK
    assert "inference.mode" in capsys.readouterr().out
    given = ("--climatology", "none", "--regions", "global")
    assert score(tmp_path / "out", tmp_path / "scores", *given) == OK
    found = capsys.readouterr()
    assert "inference.mode" not in found.out + found.err
