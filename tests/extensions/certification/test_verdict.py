"""Errors, bounds, and which of them are broken."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from credit_jax.extensions.certification import Certificate
from credit_jax.extensions.certification.certify import Job, Judge
from credit_jax.extensions.certification.command import page_of
from credit_jax.extensions.certification.measure import (
    FORECAST,
    PARTS,
    TRAINING,
    Measured,
)
from credit_jax.extensions.certification.verdict import (
    FLOAT32,
    compare,
    errors_of_each,
    vanishing,
)


def measured(**changes):
    """Numbers of two weights, of which the gradient of one vanishes."""
    rng = np.random.default_rng(0)
    weights = {"a/kernel": rng.normal(size=(4, 3)), "a/bias": rng.normal(size=3)}
    saved = {path: array + 0.01 for path, array in weights.items()}
    trained = {f"params|{path}": array + 0.1 for path, array in weights.items()}
    trained |= {f"average|{path}": array + 0.05 for path, array in weights.items()}
    numbers = Measured(
        "1",
        initial=weights,
        forecast={"prediction": rng.normal(size=(2, 3, 1, 4, 5))},
        losses=np.array([1.0, 0.9]),
        gradients={"a/kernel": rng.normal(size=(4, 3)), "a/bias": np.full(3, 1e-9)},
        state={"batch_stats/a/mean": rng.normal(size=3)},
        trained=trained,
        saved=saved,
        written=saved,
        restored=saved,
    )
    return replace(numbers, **changes)


def broken(actual):
    checks = compare(actual, measured(), FLOAT32)
    return {check.quantity: check.where for check in checks if not check.passed}


def test_the_same_numbers_pass():
    assert {check.error for check in compare(measured(), measured(), FLOAT32)} == {0}
    # Without training the forecast alone is compared.
    names = "gradients", "state", "trained", "saved", "restored"
    changes = {name: {} for name in names}
    forecast = measured(losses=np.zeros(0), **changes)
    checks = compare(forecast, forecast, FLOAT32)
    assert [check.quantity for check in checks] == ["initial weights", "prediction"]
    assert {check.part for check in checks[1:]} == {FORECAST}


@pytest.mark.parametrize(
    ("field", "name", "size", "quantity"),
    [
        ("initial", "a/bias", 1e-7, "initial weights"),
        ("forecast", "prediction", 3e-6, "prediction"),
        ("gradients", "a/kernel", 1e-5, "gradient of all weights"),
        ("gradients", "a/bias", 1.0, "gradient of each weight"),
        ("trained", "params|a/kernel", 1e-2, "change of all weights"),
        ("trained", "average|a/kernel", 1e-2, "change of the average"),
        ("trained", "average|a/bias", 1e-2, "state at the end"),
        ("state", "batch_stats/a/mean", 1e-3, "state of the model"),
        ("written", "a/bias", 1e-7, "checkpoint written here"),
        ("restored", "a/kernel", 1e-7, "checkpoint restored here"),
    ],
)
def test_a_difference_is_found(field, name, size, quantity):
    arrays = dict(getattr(measured(), field))
    arrays[name] = arrays[name] * (1 + size) + size
    assert quantity in broken(measured(**{field: arrays}))


@pytest.mark.parametrize("value", [0.91, np.nan, np.inf])
def test_losses(value):
    losses = measured(losses=np.array([1.0, value]))
    assert broken(losses) == {"loss of each update": "update 2"}


def test_a_vanishing_gradient_is_left_out_of_the_change_alone():
    assert vanishing(measured()) == ["a/bias"]
    arrays = dict(measured().trained)
    arrays["params|a/bias"] = arrays["params|a/bias"] + 1.0
    assert [*broken(measured(trained=arrays))] == ["state at the end"]
    arrays["params|a/kernel"] = arrays["params|a/kernel"] + 1.0
    both = ["change of all weights", "state at the end"]
    assert [*broken(measured(trained=arrays))] == both


def test_errors_of_gradients_are_relative_to_each_and_to_all():
    numbers = measured().gradients
    doubled = {path: 2 * array for path, array in numbers.items()}
    errors = errors_of_each(doubled, numbers)
    np.testing.assert_allclose(errors["a/kernel"], 1 / 1.001)
    assert errors["a/bias"] < 1e-5


class Numbers:
    """A runner of meshes with a wrong prediction, and a reference without.

    Args:
        wrong: of which dtypes, by `x64`.
        error: relative error of the prediction.
    """

    def __init__(self, *wrong, error=5e-6, **changes):
        self.wrong, self.error, self.asked, self.changes = wrong, error, [], changes

    def __call__(self, job, function, expected, actual=None):
        mesh, x64, parts = job.mesh, job.x64, job.parts
        if function is Job.place:
            return f"{mesh}, {x64}, {', '.join(parts)}"
        if mesh != "1":
            self.asked.append((mesh, x64, parts))
        return self.measured(mesh, expected, x64, parts)

    def measured(self, mesh, expected, x64, parts):
        changes = {} if TRAINING in parts else {"gradients": {}, "restored": {}}
        changes["mesh"] = mesh
        if expected is not None:
            changes |= self.changes
            if x64 in self.wrong:
                prediction = measured().forecast["prediction"]
                changes["forecast"] = {"prediction": (1 + self.error) * prediction}
        return measured(**changes)

    def verdicts(self, *meshes, x64=False):
        return [*map(Judge(self, Job("1", "1", Path(), x64)), meshes)]


def test_float64_decides_of_what_is_broken_alone():
    runner = Numbers(False)
    for verdict in runner.verdicts("tp2", "domain2"):
        assert (verdict.passed, verdict.place) == (True, "")
    wide = [ask for ask in runner.asked if ask[1]]
    assert wide == [("tp2", True, (FORECAST,)), ("domain2", True, (FORECAST,))]


def test_float64_does_not_decide_of_bits():
    """Numbers that are copied are the same in float32, too."""
    initial = {path: array + 1e-9 for path, array in measured().initial.items()}
    runner = Numbers(initial=initial)
    (verdict,) = runner.verdicts("tp2")
    assert not verdict.passed
    assert verdict.place == "tp2, False, forecast, training"
    assert not any(x64 for _, x64, _ in runner.asked)


@pytest.mark.parametrize(("x64", "parts"), [(False, ["forecast"]), (True, PARTS)])
def test_what_is_broken_in_float64_differs(x64, parts):
    (verdict,) = Numbers(False, True).verdicts("tp2", x64=x64)
    assert not verdict.passed
    assert verdict.place == f"tp2, True, {', '.join(parts)}"


def test_where_float32_says_nothing_the_others_are_compared_in_float64_alone():
    runner = Numbers(False, error=2e-5)
    first, second = runner.verdicts("tp2", "domain2")
    assert first.passed
    assert second.passed
    assert not second.checks
    asked = ("tp2", False), ("tp2", True), ("domain2", True)
    assert runner.asked == [(*each, PARTS) for each in asked]
    assert next(second.lines()).endswith("bound 0e+00 of float64")
    page = page_of(Certificate("a model", "1", FLOAT32, (first, second)))
    assert "domain2, float64" in page
    # An error in float64 does not make float32 say nothing.
    verdicts = Numbers(False, True, error=2e-5).verdicts("tp2", "domain2")
    assert all(verdict.checks and not verdict.passed for verdict in verdicts)


def test_errors_stand_under_their_quantity():
    runner = Numbers(False)
    runner.measured = lambda mesh, expected, x64, parts: measured(
        losses=np.array([1.0, 0.9 + 4e-6 * (mesh != "1" and not x64)]),
        **({} if FORECAST in parts else {"forecast": {}}),
    )
    (verdict,) = runner.verdicts("tp2")
    page = page_of(Certificate("a model", "1", FLOAT32, (verdict,)))
    quantities = [check.quantity for check in verdict.checks]
    row = page[page.index("tp2, float64") :]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row[: row.index("</tr>")])
    by_quantity = dict(zip(quantities, cells[1:], strict=True))
    assert cells[0] == "passed in float64"
    assert by_quantity["prediction"] == ""
    assert by_quantity["loss of each update"] == "0 ≤ 1e-12", cells


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"losses": np.array([1.0, np.nan])}, "losses"),
        ({"gradients": {"a/bias": np.array(np.inf)}}, "gradient of a/bias"),
        ({"initial": {"a/kernel": np.array(np.nan)}}, "weights a/kernel"),
    ],
)
def test_one_device_without_finite_numbers(changes, name):
    """Every mesh would differ from it."""
    runner = Numbers()
    runner.measured = lambda *arguments: measured(**changes)
    with pytest.raises(ValueError, match=rf"mesh 1 gives .* not finite \({name}\)"):
        runner.verdicts("tp2")
