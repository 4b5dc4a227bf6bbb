"""Paired differences: intervals that hold, and scores of grids beside numpy."""

import numpy as np
import pytest
import xarray as xr

from credit_jax.cli.commands import OK
from credit_jax.cli.score import main
from credit_jax.evaluation.scores import read_scores
from credit_jax.evaluation.sums import ScoreSums, half_width, paired_differences

HOUR = np.timedelta64(1, "h")


def autoregression(correlation, size, seed):
    """(start, campaign) of errors of unit variance."""
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=size)
    values = np.empty(size)
    values[0] = drawn[0]
    for k in range(1, len(values)):
        values[k] = correlation * values[k - 1]
        values[k] += np.sqrt(1 - correlation**2) * drawn[k]
    return values


@pytest.mark.parametrize("count", [30, 60, 100, 400])
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.5, 0.7, 0.8, 0.9])
def test_intervals_hold_in_95_percent_of_campaigns(correlation, count):
    """Of 1,000; without inflation 43 % hold of 100 start dates with 0.7."""
    values = autoregression(correlation, (count, 1000), seed=1)
    holds = np.abs(values.mean(0)) <= half_width(values)
    assert 0.93 <= holds.mean() <= 0.97


@pytest.mark.parametrize("count", [100, 400])
def test_noise_does_not_hide_a_correlation(count):
    """Half of the variance is noise: the correlation from one to the next is 0.35."""
    hidden = autoregression(0.7, (count, 1000), seed=1)
    values = (hidden + np.random.default_rng(2).normal(size=hidden.shape)) / 2**0.5
    holds = np.abs(values.mean(0)) <= half_width(values)
    assert 0.92 <= holds.mean() <= 0.97


@pytest.mark.parametrize("metric", ["rmse", "mae"])
def test_intervals_of_two_forecasts_hold(metric):
    """Errors at 10 points, of which the forecasts have most in common.

    Numbers of points vary, and the scores of infinite campaigns are those of a normal
    distribution.
    """
    shape = (100, 1000, 10)
    common, one, two = (autoregression(0.5, shape, seed) for seed in (1, 2, 3))
    errors = [1.1 * (0.9 * common + np.sqrt(0.19) * x) for x in (one, two)]
    errors[1] /= 1.1
    weights = np.random.default_rng(4).integers(0, 2, shape).astype(float)
    weights[..., 0] = 1
    power, key = {"rmse": (2, "squared"), "mae": (1, "absolute")}[metric]
    sides = [
        [
            ScoreSums(
                (np.datetime64("2000-01-01", "D") + k,),
                {
                    "forecast/weight": w.sum(-1)[:, None, None],
                    f"forecast/{key}": (w * np.abs(e) ** power).sum(-1)[:, None, None],
                },
            )
            for k, (w, e) in enumerate(zip(weights, each, strict=True))
        ]
        for each in errors
    ]
    found = paired_differences(*sides)
    expected = 0.1 * {"rmse": 1.0, "mae": np.sqrt(2 / np.pi)}[metric]
    interval = found[f"{metric}_interval"]["forecast"]
    holds = np.abs(found[f"{metric}_difference"]["forecast"] - expected) <= interval
    assert 0.93 <= holds.mean() <= 0.97
    # As if the forecasts had nothing in common.
    apart = [
        half_width(
            np.stack([x.arrays[f"forecast/{key}"] for x in side])
            / np.stack([x.arrays["forecast/weight"] for x in side])
        )
        for side in sides
    ]
    assert (interval < np.hypot(*apart) / power).mean() > 0.95


def test_few_start_dates_and_equal_forecasts():
    assert np.isnan(half_width(np.ones((4, 2)))).all()
    assert (half_width(np.ones((9, 2))) == 0).all()


def make_store(seed, num_starts=8):
    first = np.datetime64("2001-01-01T00", "ns")
    coords = {
        "time": first + 24 * np.arange(num_starts) * HOUR,
        "prediction_timedelta": (12 * np.arange(1, 3) * HOUR).astype("timedelta64[ns]"),
        "latitude": np.linspace(-75, 75, 6),
        "longitude": np.arange(0, 360, 45.0),
    }
    shape = [len(x) for x in coords.values()]
    values = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    return xr.Dataset({"SP": (tuple(coords), values, {"units": "Pa"})}, coords)


def test_scores_on_grids_have_differences(tmp_path, capsys):
    """Of the start dates that both have, and in their order in time."""
    first, second = make_store(1).isel(time=slice(None, None, -1)), 2 * make_store(2, 7)
    times = np.arange("2001-01-01", "2001-01-12", dtype="datetime64[12h]")
    truth = np.random.default_rng(3).normal(size=(len(times), 6, 8)).astype(np.float32)
    truth = xr.Dataset(
        {"SP": (("time", "latitude", "longitude"), truth, {"units": "Pa"})},
        {
            "time": times.astype("datetime64[ns]"),
            "latitude": first["latitude"],
            "longitude": first["longitude"],
        },
    )
    truth.to_netcdf(tmp_path / "truth.nc")
    second["SP"].attrs["units"] = "Pa"
    for name, store in (("a", first), ("b", second)):
        store.to_zarr(tmp_path / f"{name}.zarr", consolidated=False)
    fixed = ["--truth", str(tmp_path / "truth.nc"), "--cache", "none"]
    fixed += ["--forecast", str(tmp_path / "a.zarr"), "--out", str(tmp_path / "out")]
    fixed += ["--climatology", "none"]
    assert main([*fixed, "--against", str(tmp_path / "b.zarr")]) == OK
    shown = capsys.readouterr().out
    assert "1 start dates and 0 lead times are not in both" in shown
    scores = read_scores(tmp_path / "out").sel(
        system="forecast", region="global", channel="SP"
    )
    weights = np.cos(np.deg2rad(first["latitude"]))
    times = second["time"]
    valid = times + first["prediction_timedelta"]
    squares = [
        ((x["SP"].sel(time=times) - truth["SP"].sel(time=valid)) ** 2)
        .astype(float)
        .weighted(weights)
        .mean(("latitude", "longitude"))
        .transpose("time", ...)
        for x in (first, second)
    ]
    rmse = [np.sqrt(x.mean("time").values) for x in squares]
    np.testing.assert_allclose(scores["rmse"], rmse[0], rtol=1e-5)
    np.testing.assert_allclose(scores["rmse_difference"], rmse[0] - rmse[1], rtol=1e-5)
    linear = [x.values / (2 * r) for x, r in zip(squares, rmse, strict=True)]
    np.testing.assert_allclose(
        scores["rmse_interval"], half_width(linear[0] - linear[1]), rtol=1e-4
    )
