"""The end of a run without scores; that with scores is in tests/test_train.py."""

import io

import pytest
from rich.console import Console

from credit_jax.config import ConfigError
from credit_jax.training import report
from credit_jax.training.display import Display
from credit_jax.training.loop import Outcome
from credit_jax.training.setup import Setup


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
