"""The comparison of a mesh with one device: errors, bounds and their origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from credit_jax.certification.measure import (
    FORECAST,
    PARAMS,
    RUN,
    SEPARATOR,
    TRAINING,
    Arrays,
    Measured,
)
from credit_jax.checkpoint import OPTIMIZER
from credit_jax.ops.relative_error import relative_error

# A parameter whose gradient is smaller than this share of that of all parameters, by
# root mean square, has a gradient of rounding errors alone: it is 0 in exact
# arithmetic, as that of a bias before a norm. Optimizers such as Adam divide by it.
VANISHING = 1e-4
# Quantity of the first step of a forecast; others begin with it.
_PREDICTION = "prediction"
STATE = "state of the model"


@dataclass(frozen=True)
class Bounds:
    """The largest relative errors that pass.

    Attributes:
        origin: a sentence on where they come from.
        forecast: error of the prediction of a step, in the L2 norm over samples,
            channels and points.
        loss: error of each loss.
        gradient: error of the gradient of all parameters together, in the L2 norm.
        parameter: error of the gradient of one parameter, in the L2 norm, relative to
            its own norm and a thousandth of that of all; likewise of one array of the
            model's state.
        change: error of the change of all weights by the updates, in the L2 norm,
            without parameters whose gradient vanishes (`VANISHING`).
        run: error of the weights, of their average and of the state of the optimizer
            after a run, each in the L2 norm.
        update: error of the change of weights, of their average and of moments, each
            in the L2 norm, by updates whose gradient is the same.
        logged: error of each number that a run logs.
    """

    origin: str
    forecast: float
    sensitivity: float
    loss: float
    gradient: float
    parameter: float
    change: float
    run: float
    update: float
    logged: float


FLOAT32 = Bounds(
    "float32 keeps 24 bits (6e-8); sums in another order, over the layers of a model, "
    "differ by ten times as much. An error above a bound is decided in float64.",
    forecast=1e-6,
    sensitivity=4e-6,
    loss=1e-6,
    gradient=2e-6,
    parameter=1e-4,
    change=1e-3,
    run=1e-4,
    update=1e-6,
    logged=5e-5,
)
FLOAT64 = Bounds(
    "float64 keeps 53 bits (1e-16); as in float32, differences beyond a few thousand "
    "of these are none of rounding.",
    forecast=1e-12,
    sensitivity=1e-12,
    loss=1e-12,
    gradient=1e-12,
    parameter=1e-10,
    change=1e-8,
    run=1e-9,
    update=1e-12,
    logged=1e-10,
)
# Of numbers that a run in 16 bits logs, which keeps 8 of them: what is wrong by
# a factor is found, what is wrong by less is in float32.
NARROW = 0.05


def bounds_of(*, x64: bool) -> Bounds:
    """Returns the bounds of float64 or of float32."""
    return FLOAT64 if x64 else FLOAT32


@dataclass(frozen=True)
class Check:
    """One quantity of one mesh, compared with one device.

    Attributes:
        quantity: what is compared.
        error: the largest relative error; 0 where all bits agree.
        bound: the largest that passes; 0 demands the same bits.
        where: what has this error: a channel, an update, a parameter.
        part: the part of what is measured that it is about, of `measure.PARTS`.
        is_final: whether float64 does not excuse it: copied bits, the config's dtype.
    """

    quantity: str
    error: float
    bound: float
    where: str = ""
    part: str = TRAINING
    is_final: bool = False

    @property
    def passed(self) -> bool:
        """Whether the error is within its bound; NaN is not."""
        return self.error <= self.bound


def compare(actual: Measured, expected: Measured, bounds: Bounds) -> list[Check]:
    """Compares a mesh with one device.

    Args:
        actual: numbers of the mesh.
        expected: numbers of one device.
        bounds: bounds of the dtype of both.
    """
    checks = [
        _same_bits("initial weights", actual.initial, expected.initial),
        *(
            Check(
                name if name == _PREDICTION else f"{_PREDICTION}, {name}",
                relative_error(actual.forecast[name], field),
                bounds.forecast,
                _worst_channel(actual.forecast[name], field),
                FORECAST,
            )
            for name, field in expected.forecast.items()
        ),
    ]
    if expected.sensitivity:
        error = relative_error(actual.sensitivity["x"], expected.sensitivity["x"])
        checks.append(
            Check("gradient of the input", error, bounds.sensitivity, "", FORECAST)
        )
    checks += _of_run(actual, expected, bounds)
    if not expected.gradients:
        return checks
    checks += [
        _losses(actual, expected, bounds.loss),
        *_gradients(actual, expected, bounds),
        _change(
            "change of all weights",
            actual.updated,
            expected.updated,
            expected,
            bounds.change,
        ),
    ]
    if expected.optimized:
        arrays = actual.optimized, expected.optimized, bounds.update, expected.start
        checks.append(_of_parts("update by one gradient", *arrays))
    if expected.average:
        checks.append(
            _change(
                "change of the average",
                actual.average,
                expected.average,
                expected,
                bounds.change,
            )
        )
    if expected.state:
        checks.append(_each(STATE, actual.state, expected.state, bounds.parameter))
    checks.append(_same_bits("checkpoint written here", actual.written, actual.saved))
    if actual.restored is not None:
        checks.append(
            _same_bits("checkpoint restored here", actual.restored, expected.saved)
        )
        loss = relative_error(np.asarray(actual.restored_loss), expected.losses[1])
        checks.append(Check("loss after restoring", loss, bounds.loss, "update 2"))
    return checks


def _of_run(actual: Measured, expected: Measured, bounds: Bounds) -> list[Check]:
    """The checks of a run of the config."""
    checks = []
    for name, bound in (("logged", bounds.logged), ("logged_in_dtype", NARROW)):
        numbers, others = getattr(actual, name), getattr(expected, name)
        if not others:
            continue
        is_narrow = name == "logged_in_dtype"
        errors = {
            key: _error_of_number(numbers.get(key), x) for key, x in others.items()
        }
        errors |= dict.fromkeys(numbers.keys() - others.keys(), np.inf)
        worst = max(errors, key=lambda key: errors[key])
        quantity = "logs of the run" + (", in its dtype" if is_narrow else "")
        checks.append(Check(quantity, errors[worst], bound, worst, RUN, is_narrow))
    if expected.trained:
        arrays = actual.trained, expected.trained
        checks.append(_of_parts("state of the run", *arrays, bounds.run, part=RUN))
        opened = _same_bits("weights of a forecast", actual.opened, expected.opened)
        checks.append(replace(opened, part=RUN))
    return checks


def _error_of_number(actual: np.ndarray | None, expected: np.ndarray) -> float:
    if actual is None:
        return np.inf
    return _order(relative_error(np.asarray(actual), np.asarray(expected)))


def _of_parts(
    quantity: str,
    actual: Arrays,
    expected: Arrays,
    bound: float,
    start: Arrays | None = None,
    part: str = TRAINING,
) -> Check:
    """The part of a training state with the largest error, in the L2 norm.

    Weights and their average are compared by their change since `start`, if there is
    one.
    """
    differences: dict[str, Arrays] = {}
    sizes: dict[str, Arrays] = {}
    for key, last in expected.items():
        name, _, path = key.partition(SEPARATOR)
        last = np.asarray(last, np.float64)
        first = (start or {}).get(f"{PARAMS}{SEPARATOR}{path}", np.zeros(()))
        change = last - (0 if name == OPTIMIZER else first)
        differences.setdefault(name, {})[path] = np.asarray(actual[key] - last)
        sizes.setdefault(name, {})[path] = np.asarray(change)
    errors = {
        name: _order(_ratio(_norm(arrays), _norm(sizes[name])))
        for name, arrays in differences.items()
    }
    worst = max(errors, key=lambda name: errors[name])
    return Check(quantity, errors[worst], bound, worst, part)


def errors_of_each(actual: Arrays, expected: Arrays) -> dict[str, float]:
    """The error of each array, such as a gradient, by path (`Bounds.parameter`)."""
    total = _norm(expected)
    errors = {}
    for path, array in expected.items():
        error = relative_error(actual[path], array)
        size = float(np.linalg.norm(np.asarray(array, np.float64)))
        scale = size + 1e-3 * total
        errors[path] = _ratio(error * (size or 1.0), scale)
    return errors


def _gradients(actual: Measured, expected: Measured, bounds: Bounds) -> list[Check]:
    differences = {
        path: np.asarray(actual.gradients[path], np.float64) - gradient
        for path, gradient in expected.gradients.items()
    }
    whole = _ratio(_norm(differences), _norm(expected.gradients))
    return [
        Check("gradient of all weights", whole, bounds.gradient),
        _each(
            "gradient of each weight",
            actual.gradients,
            expected.gradients,
            bounds.parameter,
        ),
    ]


def _each(quantity: str, actual: Arrays, expected: Arrays, bound: float) -> Check:
    """The array with the largest error."""
    errors = errors_of_each(actual, expected)
    worst = max(errors, key=lambda path: _order(errors[path]), default="")
    return Check(quantity, errors.get(worst, 0.0), bound, worst)


def _losses(actual: Measured, expected: Measured, bound: float) -> Check:
    errors = [
        relative_error(a, b)
        for a, b in zip(actual.losses, expected.losses, strict=True)
    ]
    worst = int(np.argmax(errors))
    return Check("loss of each update", errors[worst], bound, f"update {worst + 1}")


def _change(
    quantity: str, actual: Arrays, final: Arrays, expected: Measured, bound: float
) -> Check:
    """Compares weights with `final`, relative to their change since the beginning."""
    differences, changes = {}, {}
    for path in expected.gradients:
        if not _vanishes(path, expected):
            last = np.asarray(final[path], np.float64)
            changes[path] = last - expected.initial[path]
            differences[path] = actual[path] - last
    sizes = {path: _order(_norm({path: d})) for path, d in differences.items()}
    worst = max(sizes, key=lambda path: sizes[path], default="")
    return Check(quantity, _ratio(_norm(differences), _norm(changes)), bound, worst)


def _vanishes(path: str, expected: Measured) -> bool:
    count = sum(gradient.size for gradient in expected.gradients.values())
    every = _norm(expected.gradients) / np.sqrt(count)
    gradient = np.asarray(expected.gradients[path], np.float64)
    return bool(np.sqrt(np.mean(gradient**2)) <= VANISHING * every)


def vanishing(expected: Measured) -> list[str]:
    """The parameters whose gradient is of rounding errors alone, by path."""
    return [path for path in expected.gradients if _vanishes(path, expected)]


def not_finite(measured: Measured) -> str:
    """The first of some numbers that is not finite, in words; "" if all are."""
    weights, gradients = measured.initial, measured.gradients
    arrays = {
        **{f"weights {path}": array for path, array in weights.items()},
        **measured.forecast,
        "losses": measured.losses,
        **{f"gradient of {path}": array for path, array in gradients.items()},
    }
    return next((n for n, a in arrays.items() if not np.isfinite(a).all()), "")


def _same_bits(quantity: str, actual: Arrays, expected: Arrays) -> Check:
    errors = {path: relative_error(actual[path], a) for path, a in expected.items()}
    worst = max(errors, key=lambda path: _order(errors[path]))
    where = worst if errors[worst] else ""
    return Check(quantity, errors[worst], 0.0, where, is_final=True)


def _worst_channel(actual: np.ndarray, expected: np.ndarray) -> str:
    if actual.shape != expected.shape or expected.ndim < 2:
        return ""
    errors = [
        _order(relative_error(actual[:, channel], expected[:, channel]))
        for channel in range(expected.shape[1])
    ]
    return f"channel {int(np.argmax(errors))}"


def _norm(arrays: Mapping[str, np.ndarray]) -> float:
    squares = (np.sum(np.asarray(a, np.float64) ** 2) for a in arrays.values())
    return float(np.sqrt(sum(squares)))


def _ratio(error: float, size: float) -> float:
    """An error relative to a size; the error itself where the size is 0."""
    ratio = error / size if size > 0 else error
    return ratio if np.isfinite(ratio) else float("inf")


def _order(error: float) -> float:
    """An error as a number that sorts: NaN is the largest."""
    return float("inf") if np.isnan(error) else error
