"""Elementwise formulas for numpy and JAX arrays, on the host and traced."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Shaped

Base: TypeAlias = Literal["e", "2", "10"]

_LOG = {"e": "log", "2": "log2", "10": "log10"}
_NUMBER = {"e": math.e, "2": 2.0, "10": 10.0}


def log_offset(base: Base, eps: float) -> float:
    """Computes log_base(eps) of a Python float."""
    return getattr(math, _LOG[base])(eps)


def shifted_log(x: Shaped[Any, ...], *, base: Base, eps: float) -> Shaped[Any, ...]:
    """Computes `log_base(x + eps) - log_base(eps)`, which is 0 at 0 and NaN below -eps.

    For numpy arrays, the logarithm is computed in float64 and rounded once.
    """
    return _log(x + eps, base) - log_offset(base, eps)


def shifted_exp(y: Shaped[Any, ...], *, base: Base, eps: float) -> Shaped[Any, ...]:
    """Computes `base ^ (y + log_base(eps)) - eps`, the inverse of `shifted_log`."""
    return _exp(y + log_offset(base, eps), base) - eps


def root(x: Shaped[Any, ...]) -> Shaped[Any, ...]:
    """Computes the square root, which is NaN below 0."""
    if is_numpy(x):
        with np.errstate(invalid="ignore"):
            return np.sqrt(x)
    return jnp.sqrt(x)


def standardize(
    x: Shaped[Any, "batch level time lat lon"],
    shift: Shaped[np.ndarray, ...],
    factor: Shaped[np.ndarray, ...],
    local_rows: Callable[..., Any] | None = None,
) -> Shaped[Any, "batch level time lat lon"]:
    """Computes `(x - shift) / factor`.

    Args:
        x: the field, numpy or JAX.
        shift, factor: broadcast to `x`, or to the whole field that x is a shard of.
        local_rows: selects the rows of this shard (`FieldContext.local_rows`); None
            for all.

    Returns:
        The field, in the promoted dtype for numpy arrays, in that of x for JAX arrays.
    """
    if is_numpy(x):
        return (x - shift) / factor
    # In float32 a float64 shift is two numbers: rounded to one, a mean of 280 K would
    # be off by 1e-6 deviations.
    rounded = np.asarray(shift, x.dtype)
    rest, divisor = (np.asarray(part, x.dtype) for part in (shift - rounded, factor))
    if local_rows is not None:
        rounded, rest = local_rows(rounded), local_rows(rest)
        divisor = local_rows(divisor, fill=1)
    rounded, rest, divisor = (
        jnp.broadcast_to(jnp.asarray(part), x.shape)
        for part in (rounded, rest, divisor)
    )
    # XLA adds constants that follow one another, that of a denormalization included,
    # and multiplies by the reciprocal of what is broadcast: each rounds otherwise.
    rounded, rest, divisor = lax.optimization_barrier((rounded, rest, divisor))
    moved = x - rounded if shift.dtype == x.dtype else (x - rounded) - rest
    return moved / divisor


def is_numpy(x: Any) -> bool:
    """Whether an array is a numpy array."""
    return isinstance(x, np.ndarray)


def _log(x: Any, base: Base) -> Any:
    if is_numpy(x):
        with np.errstate(invalid="ignore", divide="ignore"):
            return getattr(np, _LOG[base])(x, dtype=np.float64).astype(x.dtype)
    return getattr(jnp, _LOG[base])(x)


def _exp(x: Any, base: Base) -> Any:
    if is_numpy(x):
        with np.errstate(over="ignore"):
            wide = x.astype(np.float64)
            power = np.exp(wide) if base == "e" else np.power(_NUMBER[base], wide)
            return power.astype(x.dtype)
    return jnp.exp(x) if base == "e" else jnp.power(_NUMBER[base], x)
