"""Short summaries of scores."""

import numpy as np
import pytest

from credit_jax.visualization.canvas import lead_text, number_text
from credit_jax.visualization.summary import (
    chosen_channels,
    chosen_leads,
    skillful_until,
    values_of,
)
from tests.visualization.synthetic import make_scores


def _with_errors(forecast, baseline):
    scores = make_scores(levels=(500.0,), num_days=2, step=12)
    rmse = scores["rmse"].copy()
    rmse.loc[{"system": "forecast", "channel": "T500"}] = np.array(forecast, float)
    rmse.loc[{"system": "climatology", "channel": "T500"}] = np.array(baseline, float)
    return scores.assign(rmse=rmse)


@pytest.mark.parametrize(
    ("forecast", "text"),
    [
        ([1, 2, 2.5, 2.9], "≥ 2 d"),
        ([1, 2, 3, 4], "1 d"),
        ([3, 4, 5, 6], "never"),
        ([4, 2, 2, 4], "not at first"),
        ([1, 4, 1, 1], "12 h"),
        ([1, 2, np.nan, 4], "1 d"),
        ([1, 2, 2, np.nan], "≥ 1 d 12 h"),
    ],
)
def test_until_when_a_forecast_is_better(forecast, text):
    scores = _with_errors(forecast, [3, 3, 3, 3])
    found = skillful_until(scores, "T500", "climatology")
    assert found is not None
    assert found.text == text


def test_of_what_is_not_known_nothing_is_said():
    scores = _with_errors([1, 1, 1, 1], [np.nan] * 4)
    assert skillful_until(scores, "T500", "climatology") is None
    assert skillful_until(scores, "T500", "no such system") is None
    for metric, system in (("crps", "forecast"), ("acc", "climatology")):
        assert not values_of(scores, metric, system).sel(channel="T500").notnull().any()


def test_leads_of_tables():
    texts = [lead_text(own) for own in chosen_leads(make_scores(num_days=10))]
    assert texts == ["1 d", "3 d", "5 d", "7 d", "10 d"]
    short = make_scores(num_days=1, step=6).isel(prediction_timedelta=[0, 1, 2])
    assert [lead_text(own) for own in chosen_leads(short)] == ["6 h", "18 h"]


@pytest.mark.parametrize(
    ("levels", "chosen"),
    [
        ((50.0, 250.0, 500.0, 700.0, 850.0, 1000.0), ("250", "500", "850")),
        (tuple(float(n) for n in range(1, 14)), ("4", "7", "10")),
    ],
)
def test_channels_of_curves(levels, chosen):
    scores = make_scores(levels=levels, num_days=1)
    assert chosen_channels(scores, limit=100) == [*scores["channel"].values]
    found = chosen_channels(scores, limit=4)
    assert found == [
        *(f"T{own}" for own in chosen),
        *(f"U{own}" for own in chosen),
        "t2m",
        "SP",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12345.6, "12300"),
        (-1.2345, "-1.23"),
        (99.96, "100"),
        (1.5e9, "1.50e+09"),
        (3e-7, "3.00e-07"),
    ],
)
def test_numbers(value, text):
    assert number_text(value) == text
