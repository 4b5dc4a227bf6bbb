"""Elementwise losses: (prediction, target) -> a non-negative value per grid point.

The names are those of CREDIT's registry (`loss.training_loss`, `loss.validation_loss`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from credit_jax.config.base import StrictModel
from credit_jax.losses.base import (
    LossEntry,
    NoParameters,
    Pointwise,
    absolute,
    pointwise,
)

Values = Float[Array, "*dims"]
Elementwise = Callable[..., Array]


class HuberParameters(StrictModel):
    """Parameters of `huber`.

    Attributes:
        delta: error at which the loss becomes linear.
    """

    delta: float = 1.0


def mse(pred: Values, target: Values) -> Values:
    """Squared error, `(p - t)^2`."""
    return jnp.square(pred - target)


def mae(pred: Values, target: Values) -> Values:
    """Absolute error, `|p - t|`."""
    return absolute(pred - target)


def huber(pred: Values, target: Values, *, delta: float = 1.0) -> Values:
    """`e^2 / 2` where `|e| <= delta`, else `delta * (|e| - delta / 2)`."""
    size = absolute(pred - target)
    quadratic = jnp.minimum(size, delta)
    return quadratic * (size - 0.5 * quadratic)


def msle(pred: Values, target: Values) -> Values:
    """Squared error of `log(1 + |x|)`."""
    return jnp.square(jnp.log1p(absolute(pred)) - jnp.log1p(absolute(target)))


def logcosh(pred: Values, target: Values) -> Values:
    """`log(cosh(e))`.

    Differs from CREDIT: finite for `|e| > 89` too, where float32 `cosh` overflows.
    """
    error = target - pred
    return jnp.logaddexp(error, -error) - jnp.log(2.0)


def xtanh(pred: Values, target: Values) -> Values:
    """`e * tanh(e)`."""
    error = target - pred
    return error * jnp.tanh(error)


def xsigmoid(pred: Values, target: Values) -> Values:
    """`2 e / (1 + exp(-e)) - e`, evaluated as `e * tanh(e / 2)`."""
    error = target - pred
    return error * jnp.tanh(0.5 * error)


def elementwise(
    function: Elementwise, parameters: type[StrictModel] = NoParameters
) -> LossEntry:
    """Makes the entry of the loss `context.mean(function(prediction, target))`.

    Args:
        function: takes two arrays and its parameters as keyword arguments.
        parameters: class that validates these parameters.
    """

    def build(settings: Any) -> Pointwise:
        keywords = dict(settings)
        return lambda prediction, target, _: function(prediction, target, **keywords)

    return pointwise(build, parameters)
