"""The command `plot`: its files, and its errors about missing data."""

import json

import numpy as np
import pytest
import xarray as xr
from PIL import Image

from credit_jax.cli.commands import OK
from credit_jax.evaluation.opening import open_forecasts
from credit_jax.evaluation.scores import write_scores
from credit_jax.extensions.plots.command import main
from credit_jax.extensions.plots.maps import MapGrid, find_window
from credit_jax.extensions.plots.scene import Scene, choose, truth_of
from credit_jax.extensions.plots.score_charts import differences
from tests.extensions.plots.stores import STARTS, make_store, write_folder
from tests.extensions.plots.synthetic import make_scores
from tests.messages.engine import *  # noqa: F403
from tests.messages.engine import Cases
from tests.support import assert_close

CASES = Cases("plot")

DATE = ("--init-time", "2004-03-01")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forecasts")
    made = make_store()
    made["T"].attrs["units"] = "K"
    made.to_zarr(folder / "forecast.zarr", consolidated=False)
    return folder


@pytest.fixture(scope="module")
def scores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scores")
    write_scores(make_scores(levels=(500.0,), num_days=2, members=3), folder)
    return folder


def plot(out, *arguments):
    return main([*map(str, arguments), "--out", str(out)])


@pytest.mark.parametrize("member", [None, "1", "mean", "spread"])
def test_a_map(store, tmp_path, capsys, member):
    out = tmp_path / "map.png"
    options = ("--variable", "T", "--level", 500, "--lead", "12h", *DATE)
    members = ("--member", member) if member else ()
    assert plot(out, "--forecast", store, *options, *members) == OK
    assert capsys.readouterr().out == f"written: {out}\n"
    with Image.open(out) as image:
        assert image.width > 500


def test_a_map_of_credits_folder_and_of_a_region(tmp_path):
    folder = write_folder(make_store(0), tmp_path / "out", "noleap")
    out = tmp_path / "map.svg"
    options = ("--variable", "SP", "--region", "300,60,0,90", *DATE)
    assert plot(out, "--forecast", folder, *options) == OK
    text = out.read_text(encoding="utf-8")
    assert "SP, 12 h from 2004-03-01 00:00, valid 2004-03-01 12:00" in text


@pytest.mark.slow(but=["config"])
@pytest.mark.parametrize("recorded", ["provenance", "config"])
def test_a_map_of_the_training_period_says_so(tmp_path, recorded):
    """By the dates of the weights, or else of the config of the forecasts."""
    make_store(0).to_zarr(tmp_path / "forecast.zarr", consolidated=False)
    out = tmp_path / "map.svg"
    for last, words in (("2004-03-02", ", of the training period"), ("2003-12-31", "")):
        dates = {"start_datetime": "2000-01-01", "end_datetime": last}
        provenance = {
            "provenance": {"training_dates": [["2000-01-01", last]]},
            "config": {"config": {"data": dates}},
        }[recorded]
        identity = {"start dates": [], "members": 1}
        record = {"identity": identity, "provenance": provenance}
        (tmp_path / "forecast.json").write_text(json.dumps(record))
        assert plot(out, "--forecast", tmp_path, "--variable", "SP", *DATE) == OK
        text = out.read_text(encoding="utf-8")
        assert f"valid 2004-03-01 12:00{words}<" in text


@pytest.mark.slow(but=["card"])
@pytest.mark.parametrize("kind", ["curves", "card", "spectra", "ranks"])
def test_figures_of_scores_of_training_dates_say_so(tmp_path, kind):
    seen = "5 of 9 dates are in the training period (2000 to 2001), and not held out"
    scores = make_scores(levels=(500.0,), num_days=1, members=3)
    write_scores(scores.assign_attrs(training_dates=seen), tmp_path)
    out = tmp_path / "figure.svg"
    assert plot(out, "--scores", tmp_path, "--kind", kind) == OK
    text = out.read_text(encoding="utf-8")
    assert ">5 of 9 dates are in the training period (2000 to 2001), and<" in text


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    """The fields of the forecasts and 2 more, with rows from south to north."""
    made = make_store(0)
    parts = []
    for start in range(2):
        own = made.isel(time=start).drop_vars("time")
        times = STARTS[start] + made["prediction_timedelta"].values
        own = own.rename(prediction_timedelta="time").assign_coords(time=times)
        parts.append(own + 2.0)
    path = tmp_path_factory.mktemp("truth") / "truth.zarr"
    truth = xr.concat(parts, "time").isel(latitude=slice(None, None, -1))
    truth["T"].attrs["units"] = "K"
    truth.to_zarr(path, consolidated=False)
    return path


def test_truth_forecast_and_error_side_by_side(truth, tmp_path):
    make_store(0).to_zarr(tmp_path / "forecast.zarr", consolidated=False)
    files = open_forecasts(str(tmp_path))
    choice = choose(files, "T", level=850, init_time="2004-03-01")
    found = truth_of(choice, str(truth), [0, 1])
    assert found.units == "K"
    for lead in (0, 1):
        assert_close(found.at(lead), choice.field(lead) + 2, 1e-6, f"lead {lead}")
    axes = Scene(choice, found).figure(1).figure.axes
    titles = [axis.get_title() for axis in axes if axis.get_title()]
    assert titles == ["truth", "forecast", "error, RMSE 2.00 K"]
    out = tmp_path / "map.svg"
    options = ("--variable", "T", "--level", 850, "--truth", truth, *DATE)
    assert plot(out, "--forecast", tmp_path, *options) == OK
    assert ">K<" in out.read_text(encoding="utf-8")
    gif = tmp_path / "map.gif"
    assert plot(gif, "--forecast", tmp_path, *options) == OK


def test_an_animation(store, tmp_path):
    out = tmp_path / "t.gif"
    options = ("--variable", "T", "--level", 850, *DATE, "--fps", 2)
    assert plot(out, "--forecast", store, *options) == OK
    with Image.open(out) as image:
        assert image.n_frames == 2
        assert image.info["duration"] == 500
        first = np.asarray(image.convert("L"))
        image.seek(1)
        assert (np.asarray(image.convert("L")) != first).any()
    shorter = tmp_path / "s.gif"
    assert plot(shorter, "--forecast", store, *options, "--lead", "6h") == OK
    with Image.open(shorter) as image:
        assert image.n_frames == 1


def of_forecast(*arguments, store, tmp_path):
    given = arguments if "--init-time" in arguments else (*arguments, *DATE)
    return lambda: plot(tmp_path / "map.png", "--forecast", store, *given)


CASES.rows(
    of_forecast,
    (),
    ("--variable", "t"),
    ("--variable", "T500"),
    ("--variable", "T"),
    ("--variable", "T", "--level", "700"),
    ("--variable", "SP", "--level", "500"),
    ("--variable", "SP", "--lead", "10h"),
    ("--variable", "SP", "--lead", "soon"),
    ("--variable", "SP", "--member", "2"),
    ("--variable", "SP", "--region", "x"),
    ("--variable", "SP", "--init-time", "noon"),
    ("--variable", "SP", "--init-time", "2004-02-29T00Z"),
    ("--variable", "SP", "--init-time", "2004-02-29"),
    name="map",
)
CASES.call(
    "no start date",
    lambda store: plot("a.png", "--forecast", store, "--variable", "SP"),
)
CASES.call(
    "a format",
    lambda store: plot("a.jpg", "--forecast", store, "--variable", "SP", *DATE),
)


@pytest.mark.slow(but=["a.png-options0", "a.html-options5"])
@pytest.mark.parametrize(
    ("out", "options"),
    [
        ("a.png", ("--metric", "acc", "--channel", "T500", "--channel", "SP")),
        ("a.svg", ("--region", "tropics")),
        ("a.png", ("--kind", "card", "--baseline", "persistence")),
        ("a.png", ("--kind", "spectra", "--channel", "T500")),
        ("a.pdf", ("--kind", "ranks", "--channel", "T500")),
        ("a.html", ("--kind", "page")),
    ],
)
def test_figures_of_scores(scores, tmp_path, out, options):
    assert plot(tmp_path / out, "--scores", scores, *options) == OK
    assert (tmp_path / out).stat().st_size > 1000


def test_a_card_beside_another_forecast(scores, tmp_path):
    write_scores(make_scores(levels=(500.0,), num_days=1), tmp_path / "other")
    options = ("--scores", scores / "scores.nc", "--kind", "card", "--baseline")
    assert plot(tmp_path / "a.svg", *options, tmp_path / "other") == OK
    assert "+0.0" in (tmp_path / "a.svg").read_text(encoding="utf-8")


CASES.rows(
    lambda *options, scores, tmp_path: plot(
        tmp_path / "a.png", "--scores", scores, *options
    ),
    ("--channel", "T50"),
    ("--region", "tropic"),
    ("--metric", "missing"),
    ("--kind", "card", "--metric", "acc"),
    ("--kind", "card", "--metric", "crps"),
    ("--kind", "card", "--baseline", "none"),
)


def of_truth(name, store, truth, tmp_path):
    """A truth that lacks a time or the field, or does not exist."""
    with xr.open_zarr(truth, consolidated=False) as made:
        made.isel(time=[0]).to_zarr(tmp_path / "short.zarr", consolidated=False)
        made[["T"]].to_zarr(tmp_path / "t.zarr", consolidated=False)
    options = ("--forecast", store, "--variable", "SP", *DATE)
    return lambda: plot(tmp_path / "a.png", *options, "--truth", tmp_path / name)


CASES.rows(of_truth, "short.zarr", "t.zarr", "none.zarr", name="truth")
CASES.rows(find_window, "atlantis", "1,2,3", "0,10,50,40", name="window")
CASES.call("a grid of 2 and 1 dims", lambda: MapGrid(np.ones((2, 2)), np.ones(2)))


@CASES.case
def a_card_of_other_channels():
    scores = make_scores(levels=(500.0,), num_days=1)
    differences(scores, scores.assign_coords(channel=[f"x{n}" for n in range(4)]))
