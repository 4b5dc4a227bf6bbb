"""Errors, bounds, and which of them are broken."""

import dataclasses

import numpy as np
import pytest

from credit_jax.certification.measure import Measured
from credit_jax.certification.verdict import (
    FLOAT32,
    compare,
    gradient_errors,
    relative_error,
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


def test_what_is_not_finite_or_of_another_shape_is_infinitely_far():
    assert relative_error(np.nan, np.nan) == np.inf
    assert relative_error(np.ones(2), np.ones(3)) == np.inf
    assert relative_error(np.ones(2), np.zeros(2)) == pytest.approx(np.sqrt(2))
