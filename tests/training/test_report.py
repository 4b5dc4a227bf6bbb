"""The end of a run without scores, and losses; with scores: tests/cli/test_train.py."""

import io

import pytest
import xarray as xr
from rich.console import Console

from credit_jax.config import ConfigError
from credit_jax.training import report
from credit_jax.training.display import Display
from credit_jax.training.loop import Outcome
from credit_jax.training.setup import Setup
from credit_jax.visualization.page import page_of
from tests.visualization.synthetic import make_scores


@pytest.fixture
def told(tmp_path):
    """`told()` -> the output of `report_scores` for an empty run folder."""

    def call():
        stream = io.StringIO()
        display = Display(Console(file=stream, width=500))
        setup, outcome = object.__new__(Setup), object.__new__(Outcome)
        report.report_scores(setup, tmp_path, outcome, display)
        return stream.getvalue()

    return call


def test_a_run_that_cannot_forecast_says_why_and_ends_well(told, monkeypatch, tmp_path):
    def refuse(setup):
        raise ConfigError(["data.source: no times"], "this forecast cannot start")

    monkeypatch.setattr(report, "plan_held_out", refuse)
    text = told()
    assert text.startswith("No scores: ")
    assert "data.source: no times" in text
    assert not any(tmp_path.iterdir())


def test_variables_that_the_data_do_not_have_are_not_on_maps():
    """A preblock `rename` gives the forecast names that the data do not have."""
    channels = {"variable": ("channel", ["U", "U", "SP"])}
    scores = xr.Dataset(coords={"channel": ["U500", "U850", "SP"], **channels})
    assert report.scored(["SP", "T", "U"], scores) == ["SP", "U"]


def test_losses_are_a_chart():
    scores = make_scores(levels=(500.0,), num_days=5, members=3).isel(region=[0, 1])
    rows = [
        {"epoch": 0, "train_loss": 3.0, "valid_loss": 4.0},
        {"epoch": 1, "train_loss": 2.0},
    ]
    text = page_of(scores, title="one", losses=report.loss_chart(rows))
    assert "<figcaption>loss by epoch</figcaption>" in text
    assert '"name": "validation", "width": 1.5, "x": [1.0], "y": [4.0]' in text
