"""Errors, bounds, and which of them are broken."""

import dataclasses

import numpy as np
import pytest

from credit_jax.certification.certify import judge
from credit_jax.certification.measure import BOTH, FORECAST, TRAINING, Measured
from credit_jax.certification.verdict import (
    FLOAT32,
    compare,
    gradient_errors,
    vanishing,
)


def measured(**changes):
    """Numbers of two weights, of which the gradient of one vanishes."""
    rng = np.random.default_rng(0)
    weights = {"a/kernel": rng.normal(size=(4, 3)), "a/bias": rng.normal(size=3)}
    numbers = Measured(
        "1",
        {"prediction": rng.normal(size=(2, 3, 1, 4, 5))},
        np.array([1.0, 0.9]),
        {"a/kernel": rng.normal(size=(4, 3)), "a/bias": np.full(3, 1e-9)},
        {},
        weights,
        {path: array + 0.1 for path, array in weights.items()},
        {path: array + 0.05 for path, array in weights.items()},
        {path: array + 0.01 for path, array in weights.items()},
        {path: array + 0.01 for path, array in weights.items()},
        0.9,
    )
    return dataclasses.replace(numbers, **changes)


def broken(actual):
    return [c.quantity for c in compare(actual, measured(), FLOAT32) if not c.passed]


def test_the_same_numbers_pass():
    assert broken(measured()) == []
    assert {check.error for check in compare(measured(), measured(), FLOAT32)} == {0}


@pytest.mark.parametrize(
    ("field", "change", "quantity"),
    [
        ("initial", {"a/bias": 1e-7}, "initial weights"),
        ("forecast", {"prediction": 3e-6}, "prediction"),
        ("gradients", {"a/kernel": 1e-5}, "gradient of all weights"),
        ("gradients", {"a/bias": 1.0}, "gradient of each weight"),
        ("updated", {"a/kernel": 1e-2}, "change of all weights"),
        ("average", {"a/kernel": 1e-2}, "change of the average"),
        ("restored", {"a/kernel": 1e-7}, "weights restored here"),
    ],
)
def test_a_difference_is_found(field, change, quantity):
    arrays = dict(getattr(measured(), field))
    for name, size in change.items():
        arrays[name] = arrays[name] * (1 + size) + size
    assert quantity in broken(measured(**{field: arrays}))


@pytest.mark.parametrize("value", [0.91, np.nan, np.inf])
def test_losses(value):
    losses = measured(losses=np.array([1.0, value]))
    assert broken(losses) == ["loss of each update"]
    check = next(c for c in compare(losses, measured(), FLOAT32) if not c.passed)
    assert check.where == "update 2"
    assert broken(measured(restored_loss=value)) == ["loss after restoring"]


def test_a_vanishing_gradient_is_left_out_of_the_change_alone():
    assert vanishing(measured()) == ["a/bias"]
    arrays = dict(measured().updated)
    arrays["a/bias"] = arrays["a/bias"] + 1.0
    assert broken(measured(updated=arrays)) == []
    arrays["a/kernel"] = arrays["a/kernel"] + 1.0
    assert broken(measured(updated=arrays)) == ["change of all weights"]


def test_errors_of_gradients_are_relative_to_each_and_to_all():
    numbers = measured().gradients
    doubled = {path: 2 * array for path, array in numbers.items()}
    errors = gradient_errors(doubled, numbers)
    np.testing.assert_allclose(errors["a/kernel"], 1 / 1.001)
    assert errors["a/bias"] < 1e-5


def test_without_training_the_forecast_alone_is_compared():
    forecast = measured(
        losses=np.zeros(0),
        gradients={},
        updated={},
        average={},
        saved={},
        restored=None,
        restored_loss=None,
    )
    checks = compare(forecast, forecast, FLOAT32)
    assert [check.quantity for check in checks] == ["initial weights", "prediction"]
    assert {check.part for check in checks[1:]} == {FORECAST}


class Numbers:
    """A runner whose mesh has a wrong prediction in float32, or as `wrong` says."""

    def __init__(self, wrong):
        self.wrong, self.asked = wrong, []

    def measured(self, mesh, *, x64, parts=BOTH):
        self.asked.append((mesh, x64, parts))
        changes = {} if TRAINING in parts else {"gradients": {}, "restored": None}
        if mesh == "tp2" and x64 in self.wrong:
            prediction = measured().forecast["prediction"]
            changes["forecast"] = {"prediction": (1 + 1e-5) * prediction}
        return measured(**changes)

    def place(self, mesh, *, x64, parts=BOTH):
        return f"{mesh}, {x64}, {', '.join(parts)}"


def test_float64_decides_of_what_is_broken_alone():
    runner = Numbers(wrong={False})
    verdict = judge(runner, "tp2", "1", x64=False)
    assert verdict.passed
    assert verdict.place == ""
    assert [ask for ask in runner.asked if ask[1]] == [
        ("1", True, (FORECAST,)),
        ("tp2", True, (FORECAST,)),
    ]


@pytest.mark.parametrize("x64", [False, True])
def test_what_is_broken_in_float64_differs(x64):
    verdict = judge(Numbers(wrong={False, True}), "tp2", "1", x64=x64)
    assert not verdict.passed
    assert verdict.place == f"tp2, True, {'forecast, training' if x64 else 'forecast'}"
