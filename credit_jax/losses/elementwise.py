"""Elementwise losses: (prediction, target) -> one non-negative number per grid point.

The names are those of CREDIT's registry (`loss.training_loss`, `loss.validation_loss`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

Values = Float[Array, "*dims"]
Elementwise = Callable[[Array, Array], Array]


def mse(pred: Values, target: Values) -> Values:
    """Squared error, `(p - t)^2`."""
    return jnp.square(pred - target)


def mae(pred: Values, target: Values) -> Values:
    """Absolute error, `|p - t|`."""
    return jnp.abs(pred - target)


def huber(pred: Values, target: Values, *, delta: float = 1.0) -> Values:
    """`e^2 / 2` where `|e| <= delta`, else `delta * (|e| - delta / 2)`."""
    size = jnp.abs(pred - target)
    quadratic = jnp.minimum(size, delta)
    return quadratic * (size - 0.5 * quadratic)


def msle(pred: Values, target: Values) -> Values:
    """Squared error of `log(1 + |x|)`."""
    return jnp.square(jnp.log1p(jnp.abs(pred)) - jnp.log1p(jnp.abs(target)))


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
    """`2 e / (1 + exp(-e)) - e`, which is `e * tanh(e / 2)` and written so."""
    error = target - pred
    return error * jnp.tanh(0.5 * error)


ELEMENTWISE: dict[str, Elementwise] = {
    "mse": mse,
    "mae": mae,
    "huber": huber,
    "msle": msle,
    "logcosh": logcosh,
    "xtanh": xtanh,
    "xsigmoid": xsigmoid,
}
_PARAMETERS: dict[str, tuple[str, ...]] = {"huber": ("delta",)}


def elementwise_loss(name: str, parameters: dict[str, Any], key: str) -> Elementwise:
    """The elementwise loss `name` with its parameters bound.

    Args:
        name: a key of `ELEMENTWISE`.
        parameters: keyword arguments; `reduction` (none or mean) is accepted, the mean
            over the grid is always taken.
        key: dotted path of the setting, for the error.

    Raises:
        ValueError: the name or a parameter is not known.
    """
    if name not in ELEMENTWISE:
        raise ValueError(
            f"{key}: got {name!r}, expected one of {', '.join(ELEMENTWISE)}; other "
            "losses of CREDIT are not implemented"
        )
    keywords = _check_parameters(name, dict(parameters), f"{key}_parameters")
    function = ELEMENTWISE[name]
    if not keywords:
        return function
    return lambda pred, target: function(pred, target, **keywords)


def _check_parameters(name: str, parameters: dict[str, Any], key: str) -> dict:
    reduction = parameters.pop("reduction", "mean")
    if reduction not in ("mean", "none"):
        raise ValueError(
            f"{key}.reduction: got {reduction!r}, expected 'mean' or 'none' "
            "(the loss is always the mean over samples, channels and grid points)"
        )
    unknown = sorted(set(parameters) - set(_PARAMETERS.get(name, ())))
    if unknown:
        known = ", ".join(_PARAMETERS.get(name, ())) or "none"
        raise ValueError(f"{key}: loss {name!r} has no {unknown}; known: {known}")
    return {k: float(v) for k, v in parameters.items()}
