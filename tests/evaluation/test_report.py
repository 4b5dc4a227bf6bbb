"""The table and the figure at the end of a run."""

import io

import numpy as np
import pytest
from rich.console import Console

from credit_jax.data.climatology import build_climatology
from credit_jax.evaluation.report import evaluate

pytestmark = pytest.mark.usefixtures("tiny_model")


@pytest.fixture
def report(setup, tmp_path):
    """`report(figure, rows)` evaluates a forecast of zeros."""
    num = setup.schema.num_target_channels

    def make(figure=None, rows=()):
        return evaluate(
            lambda x: np.zeros((len(x), num, 1, *x.shape[3:])),
            setup.valid_loader,
            build_climatology(setup.train_loader.dataset),
            batch_size=4,
            lead="6h",
            figure=figure,
            rows=rows,
        )

    return make


def test_table(report):
    found = report()
    assert found.figure is None
    stream = io.StringIO()
    Console(width=80, file=stream).print(found.table)
    text = stream.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert all(name in text for name in ("U", "T", "SP", "TP", "climatology"))
    assert "RMSE of the 6h forecast" in text


def test_figure(report, tmp_path):
    rows = [{"epoch": 0, "train_loss": 1.0, "valid_loss": 2.0}]
    path = report(tmp_path / "f.png", rows).figure
    assert path.read_bytes().startswith(b"\x89PNG")
    assert report(tmp_path / "g.png").figure.exists()
