"""bridgescaler's fast quantile transform: monotone cubic interpolation of knots."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Float

from credit_jax.named_fields.bridgescaler import QuantileScaler
from credit_jax.transforms.pointwise import is_numpy

Knots2d = Float[np.ndarray, "channel knot"]
# (scaler, quantiles) -> the values of every channel at these quantiles, float64.
Quantiles = Callable[[QuantileScaler, Float[np.ndarray, " knot"]], Knots2d]


class Knots(NamedTuple):
    """Knots of n channels, with m knots each, as numpy or JAX arrays.

    Attributes:
        x: (n, m) values, increasing.
        z: (n, m) transformed values, increasing.
        slope: (n, m) dz/dx.
        inverse_slope: (n, m) dx/dz.
    """

    x: Any
    z: Any
    slope: Any
    inverse_slope: Any


@lru_cache(maxsize=256)
def knots(scaler: QuantileScaler, quantiles: Quantiles, dtype: np.dtype) -> Knots:
    """Computes the knots of a scaler, evenly spaced in the transformed values."""
    low, high, count = scaler.min_val, scaler.max_val, scaler.num_knots
    special = scipy.special
    if scaler.distribution == "normal":
        z = np.linspace(special.ndtri(low), special.ndtri(high), count)
        shares = special.ndtr(z)
    elif scaler.distribution == "logistic":
        z = np.linspace(special.logit(low), special.logit(high), count)
        shares = special.expit(z)
    else:
        z = shares = np.linspace(low, high, count)
    x = quantiles(scaler, np.clip(shares, low, high))
    x = np.maximum.accumulate(x, axis=1)
    ties = np.diff(x, axis=1) <= 0
    x[:, 1:][ties] = x[:, :-1][ties] + 1e-12
    z = np.broadcast_to(z, x.shape)
    arrays = x, z, slopes(x, z), slopes(z, x)
    return Knots(*(part.astype(dtype) for part in arrays))


def transform(scaler: QuantileScaler, curve: Knots, x: Any) -> Any:
    """Transforms the values of one channel."""
    del scaler
    return _evaluate(curve.x, curve.z, curve.slope, x)


def inverse(scaler: QuantileScaler, curve: Knots, z: Any) -> Any:
    """Inverts `transform` for one channel."""
    del scaler
    return _evaluate(curve.z, curve.x, curve.inverse_slope, z)


def slopes(x: Knots2d, y: Knots2d) -> Knots2d:
    """Slopes dy/dx at the knots, as scipy's PchipInterpolator (Fritsch and Carlson)."""
    slope = np.zeros_like(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        h = np.diff(x, axis=1)
        delta = np.diff(y, axis=1) / h
        after, before = 2 * h[:, 1:] + h[:, :-1], h[:, 1:] + 2 * h[:, :-1]
        mean = (after + before) / (after / delta[:, :-1] + before / delta[:, 1:])
        slope[:, 1:-1] = np.where(delta[:, :-1] * delta[:, 1:] > 0, mean, 0.0)
        slope[:, 0] = _edge(h[:, 0], h[:, 1], delta[:, 0], delta[:, 1])
        slope[:, -1] = _edge(h[:, -1], h[:, -2], delta[:, -1], delta[:, -2])
    return slope


def _edge(h0: Any, h1: Any, d0: Any, d1: Any) -> Any:
    slope = ((2 * h0 + h1) * d0 - h0 * d1) / (h0 + h1)
    slope = np.where(np.sign(slope) != np.sign(d0), 0.0, slope)
    steep = (np.sign(d0) != np.sign(d1)) & (np.abs(slope) > 3 * np.abs(d0))
    return np.where(steep, 3 * d0, slope)


def _evaluate(places: Any, values: Any, slope: Any, x: Any) -> Any:
    """Cubic Hermite interpolation between the knots around x; constant beyond them."""
    xp = np if is_numpy(x) else jnp
    i = xp.clip(xp.searchsorted(places, x, side="left"), 1, places.shape[0] - 1)
    x0, x1, y0, y1 = places[i - 1], places[i], values[i - 1], values[i]
    h = x1 - x0
    t = (x - x0) / xp.where(h == 0, 1, h)
    t2 = t * t
    t3 = t2 * t
    y = (2 * t3 - 3 * t2 + 1) * y0 + (t3 - 2 * t2 + t) * h * slope[i - 1]
    y = y + (-2 * t3 + 3 * t2) * y1 + (t3 - t2) * h * slope[i]
    y = xp.where(x <= places[0], values[0], y)
    return xp.where(x >= places[-1], values[-1], y)
