"""Losses beside those of a CPU."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.gpu import training
from benchmarks.gpu.models import KERNELS, PLAIN
from benchmarks.speed.cases import case_of, make_case


def test_the_committed_losses_are_of_training_that_learns() -> None:
    kept = json.loads(training.LOSSES.read_text())["losses"]
    assert kept.keys() == training.STEPS.keys()
    for model, steps in training.STEPS.items():
        for losses in kept[model].values():
            assert len(losses) == steps
            assert losses[-1] < losses[0]


@pytest.mark.slow
def test_the_committed_losses_are_those_of_the_demo_as_it_is() -> None:
    kept = json.loads(training.LOSSES.read_text())["losses"][training.DEMO]
    first = training.losses(training.DEMO, training.PLAIN, 2)
    np.testing.assert_allclose(first, kept[training.PLAIN][:2], rtol=training.FIRST)


KEPT = {KERNELS: [1.0, 0.5, 0.25], PLAIN: [1.0, 0.5 + 1e-5, 0.25]}


@pytest.mark.parametrize(
    ("found", "right"),
    [
        ([1.0, 0.5, 0.25], True),
        ([1.0, 0.5, 0.25 * (1 + 9e-4)], True),
        ([1.0, 0.5, 0.25 * (1 + 1.1e-3)], False),
        ([1.0 + 2e-5, 0.5, 0.25], False),
        ([1.0, np.nan, 0.25], False),
        ([1.0, 0.5], True),
        ([], False),
    ],
)
def test_losses_are_right_near_those_of_the_cpu(found, right) -> None:
    assert training.compared(found, KEPT)["right"] is right


def test_waves_move_on() -> None:
    case = case_of("test", make_case("tiny", "debugger").block, 2)
    first, second = training.waves(case, 0), training.waves(case, 1)
    assert first["x"].shape == case.x.shape
    assert first["y"].shape == case.y.shape
    assert first["x"].dtype == first["y"].dtype == np.float32
    assert not np.allclose(first["x"], second["x"])
    shared = first["x"][:, : case.y.shape[1]]
    assert 0.01 < np.abs(first["y"] - shared).mean() < np.abs(shared).mean() * 2


def test_the_table_has_the_steps_that_were_run() -> None:
    found = training.compared([1.0, 0.5], KEPT)
    text, table = training.tables({KERNELS: found, PLAIN: {}})
    assert text.startswith("With kernels, 2 steps: right")
    assert [row[0] for row in table.rows] == ["1", "2"]
