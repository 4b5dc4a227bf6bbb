"""Elementwise formulas for numpy and JAX arrays, on the host and traced."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
import numpy as np
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
    shift: Shaped[Any, ...],
    factor: Shaped[Any, ...],
    out: Shaped[np.ndarray, "batch level time lat lon"] | None = None,
) -> Shaped[Any, "batch level time lat lon"]:
    """Computes `(x - shift) / factor`.

    Args:
        x: the field.
        shift, factor: arrays of 5 dims that broadcast to `x`.
        out: optional array for the result, used if it has the dtype of the result. Both
            operations are then applied level by level, within the processor's cache.
    """
    if out is None or np.result_type(x, shift, factor) != out.dtype:
        return (x - shift) / factor
    shift, factor = (np.broadcast_to(part, x.shape) for part in (shift, factor))
    for place in np.ndindex(x.shape[:2]):
        np.subtract(x[place], shift[place], out=out[place])
        np.divide(out[place], factor[place], out=out[place])
    return out


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
