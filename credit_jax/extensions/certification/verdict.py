"""The comparison of a mesh with one device: errors, bounds, and where it differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from credit_jax.checkpoint import OPTIMIZER
from credit_jax.extensions.certification.measure import (
    FORECAST,
    TRAINING,
    Measured,
    build_model,
    compiled,
    placed_batch,
    samples_of_mesh,
)
from credit_jax.extensions.certification.subject import (
    AVERAGE,
    PARAMS,
    SEPARATOR,
    Arrays,
    Subject,
    placed_weights,
)
from credit_jax.models.conversion import credit_key
from credit_jax.models.model_def import ModelDef
from credit_jax.models.registry import torch_model
from credit_jax.nn.context import Noise
from credit_jax.ops.compensated import relative_error
from credit_jax.parallel.placement import batch_spec
from credit_jax.parallel.rows.exchange import reshard
from credit_jax.parallel.rows.layout import Field

BlockOutputs = tuple[list[str], list[np.ndarray]]


def first_difference(
    subject: Subject,
    devices: Sequence[Any],
    actual: Measured,
    expected: Measured,
    bounds: Bounds,
    references: BlockOutputs,
) -> str:
    """Where a mesh first differs from one device, as it computes; "" if nowhere."""
    for path, weights in expected.initial.items():
        if relative_error(actual.initial[path], weights):
            return f"initial weights: {path}"
    names, fields = block_outputs(subject, actual.mesh, devices, expected.start)
    for name, field, reference in zip(names, fields, references[1], strict=True):
        error = relative_error(field, reference)
        if error > bounds.forecast:
            return f"output of {name}, by {error:.1e}"
    for name, field in expected.forecast.items():
        error = relative_error(actual.forecast[name], field)
        if error > bounds.forecast:
            return f"{name}, after the blocks of the network, by {error:.1e}"
    errors = errors_of_each(actual.gradients, expected.gradients)
    wrong = {path: error for path, error in errors.items() if error > bounds.parameter}
    if wrong:
        path = _nearest_to_output(subject.model_def, wrong)
        return f"gradient of {path}, by {wrong[path]:.1e}"
    for check in compare(actual, expected, bounds):
        if not check.passed:
            return f"{check.quantity}: {check.where}, by {check.error:.1e}"
    return ""


def block_outputs(
    subject: Subject, mesh: str, devices: Sequence[Any], start: Arrays
) -> BlockOutputs:
    """Names and outputs (samples, rows, lon, channel) of the network's blocks."""
    model, sizes = build_model(subject, mesh, devices), list[int]()
    definition = model.model_def
    names = tuple(definition.network_inputs)
    batch = {name: subject.batches[0].get(name) for name in names}
    batch = {
        name: np.zeros(definition.network_inputs[name].shape(subject.num_samples))
        if array is None
        else array
        for name, array in batch.items()
    }

    def body(params: Any, model_state: Any, arguments: Any) -> Any:
        captured: list[Field] = []
        inputs, noise = arguments
        model.local_forward(
            params,
            model_state,
            inputs,
            noise,
            interleaved=True,
            capture_intermediates=captured,
        )
        sizes[:] = [field.layout.size for field in captured]
        return [reshard(field, field.layout.to_blocks()).data for field in captured]

    axes = model.axes
    specs = {k: s.partition_spec(axes) for k, s in definition.network_inputs.items()}
    sharded = model.shard_map(
        body,
        batch_specs=(specs, PartitionSpec()),
        out_specs=PartitionSpec(batch_spec(axes)[0], axes.domain),
    )
    run = compiled(sharded, model)
    noise = Noise(jax.random.key(subject.seed)) if definition.draws_noise else None
    order = samples_of_mesh(subject.num_samples, model, subject)
    placed = placed_batch(batch, model, subject, order)
    weights = placed_weights(model, start)
    outputs = jax.device_get(run(*weights, (placed, noise)))
    # The order of one device.
    back = np.argsort(order)
    fields = [field[back, :size] for field, size in zip(outputs, sizes, strict=True)]
    names = _blocks_of(definition)[: len(fields)]
    unnamed = range(len(names) + 1, len(fields) + 1)
    return [*names, *(f"block {number}" for number in unnamed)], fields


def _blocks_of(model_def: ModelDef) -> Sequence[str]:
    """CREDIT's names of the blocks of a model; none if it does not have it."""
    try:
        return torch_model(model_def.config.type).block_names(model_def.config)
    except (AttributeError, ValueError):
        return ()


def _nearest_to_output(model_def: ModelDef, wrong: dict[str, float]) -> str:
    """Of parameters with a wrong gradient one of the last block; else the worst."""
    blocks = _blocks_of(model_def)
    try:
        keys = {path: credit_key(path, model_def)[-1] for path in wrong}
    except (AttributeError, ValueError):
        blocks, keys = (), {}

    def rank(path: str) -> tuple[int, float]:
        inside = [i for i, b in enumerate(blocks) if keys[path].startswith(f"{b}.")]
        return (max(inside, default=-1), wrong[path])

    return max(wrong, key=rank)


# A parameter whose gradient is smaller than this share of that of all parameters, by
# root mean square, has a gradient of rounding errors alone: it is 0 in exact
# arithmetic, as that of a bias before a norm. Optimizers such as Adam divide by it.
VANISHING = 1e-4
# Quantity of the first step of a forecast; others begin with it.
_PREDICTION = "prediction"


@dataclass(frozen=True)
class Bounds:
    """The largest relative errors that pass, and a sentence on their origin."""

    origin: str
    forecast: float
    sensitivity: float
    loss: float
    gradient: float
    # Of the gradient of one, relative to its norm and a thousandth of that of all.
    parameter: float
    # Without parameters whose gradient vanishes (`VANISHING`).
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


@dataclass(frozen=True)
class Check:
    """The largest relative error of a quantity of one mesh, and what has it.

    A bound of 0 demands the same bits. Float64 does not excuse what is final: copied
    bits, and the dtype of the config.
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
    """Compares a mesh with one device, by the bounds of the dtype of both."""
    checks = [_equal_bits("initial weights", actual.initial, expected.initial)]
    for name, field in expected.forecast.items():
        quantity = name if name == _PREDICTION else f"{_PREDICTION}, {name}"
        error = relative_error(actual.forecast[name], field)
        worst = _worst_channel(actual.forecast[name], field)
        checks.append(Check(quantity, error, bounds.forecast, worst, FORECAST))
    if expected.sensitivity:
        error = relative_error(actual.sensitivity["x"], expected.sensitivity["x"])
        checks.append(
            Check("gradient of the input", error, bounds.sensitivity, "", FORECAST)
        )
    if not expected.gradients:
        return checks + _logs(actual, expected, bounds)
    gradients = _difference(actual.gradients, expected.gradients)
    error = _ratio(_norm(gradients), _norm(expected.gradients))
    checks += [
        Check("gradient of all weights", error, bounds.gradient),
        _worst(
            "gradient of each weight",
            errors_of_each(actual.gradients, expected.gradients),
            bounds.parameter,
        ),
        _equal_bits("checkpoint written here", actual.written, actual.saved),
    ]
    if actual.restored:
        checks.append(
            _equal_bits("checkpoint restored here", actual.restored, expected.saved)
        )
    if expected.opened:
        checks.append(
            _equal_bits("weights of a forecast", actual.opened, expected.opened)
        )
    pairs = zip(actual.losses, expected.losses, strict=True)
    losses = {f"update {n}": relative_error(*pair) for n, pair in enumerate(pairs, 1)}
    # What follows from the former comes last: the first that differs is its cause.
    checks += [
        _worst("loss of each update", losses, bounds.loss),
        *_logs(actual, expected, bounds),
        _change("all weights", PARAMS, actual, expected, bounds.change),
    ]
    if expected.optimized:
        arrays = actual.optimized, expected.optimized, bounds.update, expected.start
        checks.append(_of_parts("update by one gradient", *arrays))
    if any(key.startswith(AVERAGE) for key in expected.trained):
        checks.append(_change("the average", AVERAGE, actual, expected, bounds.change))
    arrays = actual.trained, expected.trained, bounds.run
    checks.append(_of_parts("state at the end", *arrays))
    if expected.state:
        errors = errors_of_each(actual.state, expected.state)
        checks.append(_worst("state of the model", errors, bounds.parameter))
    return checks


def _logs(actual: Measured, expected: Measured, bounds: Bounds) -> list[Check]:
    """The checks of all that the run of a config logs."""
    checks, rounding = [], {}
    for name, bound in (("logged", bounds.logged), ("logged_in_dtype", NARROW)):
        numbers, others = getattr(actual, name), getattr(expected, name)
        if not others:
            continue
        is_narrow = name == "logged_in_dtype"
        # A number that one of them lacks is infinitely far.
        nothing = np.asarray(np.inf)
        errors = {}
        for key in {**others, **numbers}:
            pair = numbers.get(key, nothing), others.get(key, nothing)
            errors[key] = relative_error(*pair)
            kind = key.split(" ")[0]
            if not is_narrow:
                rounding[kind] = max(rounding.get(kind, 0.0), errors[key])
                continue
            # Correlations of random data, and their mean, are near 0: 16 bits have no
            # digits of them.
            if kind.partition("/")[0].endswith("_acc"):
                errors[key] = min(errors[key], abs(float(pair[0] - pair[1])))
            # 16 bits keep 16 digits less than float32, whose errors are of rounding.
            errors[key] /= max(1.0, 2.0**16 * rounding.get(kind, 0.0) / NARROW)
        quantity = "logs of the run" + (", in its dtype" if is_narrow else "")
        checks.append(_worst(quantity, errors, bound, is_final=is_narrow))
    return checks


def _of_parts(
    quantity: str,
    actual: Arrays,
    expected: Arrays,
    bound: float,
    start: Arrays | None = None,
) -> Check:
    """The part of a training state with the largest error, in the L2 norm."""
    differences: dict[str, Arrays] = {}
    sizes: dict[str, Arrays] = {}
    for key, difference in _difference(actual, expected).items():
        name, _, path = key.partition(SEPARATOR)
        first = (start or {}).get(f"{PARAMS}{SEPARATOR}{path}", np.zeros(()))
        change = expected[key] - (0 if name == OPTIMIZER else first)
        differences.setdefault(name, {})[path] = difference
        sizes.setdefault(name, {})[path] = np.asarray(change)
    errors = {
        name: _ratio(_norm(arrays), _norm(sizes[name]))
        for name, arrays in differences.items()
    }
    return _worst(quantity, errors, bound)


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


def _worst(
    quantity: str,
    errors: Mapping[str, float],
    bound: float,
    *,
    is_final: bool = False,
) -> Check:
    """The largest of some errors, by what has them."""
    worst = max(errors, key=lambda key: errors[key], default="")
    error = errors.get(worst, 0.0)
    return Check(quantity, error, bound, worst, is_final=is_final)


def _change(
    name: str, part: str, actual: Measured, expected: Measured, bound: float
) -> Check:
    """Compares weights at the end, relative to their change since the beginning."""
    differences, changes = {}, {}
    for path in sorted(expected.gradients.keys() - vanishing(expected)):
        key = f"{part}{SEPARATOR}{path}"
        last = np.asarray(expected.trained[key], np.float64)
        changes[path] = last - expected.initial[path]
        differences[path] = actual.trained[key] - last
    sizes = {path: _ratio(_norm({path: d}), 0.0) for path, d in differences.items()}
    worst = max(sizes, key=lambda path: sizes[path], default="")
    error = _ratio(_norm(differences), _norm(changes))
    return Check(f"change of {name}", error, bound, worst)


def _difference(actual: Arrays, expected: Arrays) -> Arrays:
    """The difference of each array, in float64."""
    return {
        key: np.asarray(np.asarray(actual[key], np.float64) - array)
        for key, array in expected.items()
    }


def vanishing(expected: Measured) -> list[str]:
    """The parameters whose gradient is of rounding errors alone, by path."""
    gradients = expected.gradients
    count = sum(gradient.size for gradient in gradients.values())
    limit = VANISHING * _norm(gradients) / np.sqrt(count or 1)
    return [
        path
        for path, gradient in gradients.items()
        if _norm({path: gradient}) / np.sqrt(gradient.size) <= limit
    ]


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


def _equal_bits(quantity: str, actual: Arrays, expected: Arrays) -> Check:
    errors = {path: relative_error(actual[path], a) for path, a in expected.items()}
    differing = {path: error for path, error in errors.items() if error}
    return _worst(quantity, differing, 0.0, is_final=True)


def _worst_channel(actual: np.ndarray, expected: np.ndarray) -> str:
    if actual.shape != expected.shape or expected.ndim < 2:
        return ""
    errors = [
        relative_error(actual[:, channel], expected[:, channel])
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
