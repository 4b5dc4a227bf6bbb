"""Elementwise losses: (prediction, target) -> a non-negative value per grid point.

The names are those of CREDIT's registry (`loss.training_loss`, `loss.validation_loss`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from credit_jax.config import StrictModel
from credit_jax.losses.base import (
    LossEntry,
    Pointwise,
    absolute,
    pointwise,
)

AnyShape = Float[Array, "*dims"]
Elementwise = Callable[..., Array]


class HuberParameters(StrictModel):
    """Parameters of `huber`.

    Attributes:
        delta: error at which the loss becomes linear.
    """

    delta: float = 1.0


def mse(pred: AnyShape, target: AnyShape) -> AnyShape:
    """Squared error, `(p - t)^2`."""
    return jnp.square(pred - target)


def mae(pred: AnyShape, target: AnyShape) -> AnyShape:
    """Absolute error, `|p - t|`."""
    return absolute(pred - target)


def huber(pred: AnyShape, target: AnyShape, *, delta: float = 1.0) -> AnyShape:
    """`e^2 / 2` where `|e| <= delta`, else `delta * (|e| - delta / 2)`."""
    size = absolute(pred - target)
    quadratic = jnp.minimum(size, delta)
    return quadratic * (size - 0.5 * quadratic)


def msle(pred: AnyShape, target: AnyShape) -> AnyShape:
    """Squared error of `log(1 + |x|)`."""
    return jnp.square(jnp.log1p(absolute(pred)) - jnp.log1p(absolute(target)))


def logcosh(pred: AnyShape, target: AnyShape) -> AnyShape:
    """`log(cosh(e))`.

    Differs from CREDIT: finite for `|e| > 89` too, where float32 `cosh` overflows.
    """
    error = target - pred
    return jnp.logaddexp(error, -error) - jnp.log(2.0)


def xtanh(pred: AnyShape, target: AnyShape) -> AnyShape:
    """`e * tanh(e)`."""
    error = target - pred
    return error * jnp.tanh(error)


def xsigmoid(pred: AnyShape, target: AnyShape) -> AnyShape:
    """`2 e / (1 + exp(-e)) - e`, evaluated as `e * tanh(e / 2)`."""
    error = target - pred
    return error * jnp.tanh(0.5 * error)


def elementwise(
    function: Elementwise, parameters: type[StrictModel] = StrictModel
) -> LossEntry:
    """Makes the entry of the loss `context.mean(function(prediction, target))`.

    Args:
        function: takes two arrays and its parameters as keyword arguments.
        parameters: class that validates these parameters.
    """

    def build(settings: Any) -> Pointwise:
        keywords = dict(settings)
        return lambda prediction, target, _: function(prediction, target, **keywords)

    build.__doc__ = function.__doc__
    return pointwise(build, parameters)
