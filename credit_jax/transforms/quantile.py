"""bridgescaler's quantile scaler: distribution functions of t-digests, and inverses.

The exact transform interpolates the cumulative weights of a digest's centroids. With
`fast_transform` it is a monotone cubic through knots of the exact transform.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import scipy.special
from jaxtyping import Float, Shaped

from credit_jax.named_fields.bridgescaler import QuantileScaler
from credit_jax.transforms.pointwise import is_numpy

LevelFields = Shaped[Any, "batch level time lat lon"]
Knots2d = Float[np.ndarray, "channel knot"]


class Digest(NamedTuple):
    """The digests of n channels, padded to k centroids, as numpy or JAX arrays.

    Attributes:
        mean: (n, k) means of the centroids, increasing; padded with inf.
        weight: (n, k) weights of the centroids; padded with 0.
        merged: (n, k) sum of the weights before a centroid, plus half of its weight.
        total: (n,) sum of all weights.
        low: (n,) smallest value.
        high: (n,) largest value.
        count: (n,) number of centroids without padding.
    """

    mean: Any
    weight: Any
    merged: Any
    total: Any
    low: Any
    high: Any
    count: Any


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


def scale(
    scaler: QuantileScaler,
    x: LevelFields,
    method: str,
    *,
    per_point: bool,
    grid: tuple[int, int],
    rows: Callable[[np.ndarray], Any],
) -> LevelFields:
    """Transforms a field to the scaler's distribution, or back.

    Args:
        scaler: the fitted scaler.
        x: (batch, level, time, lat, lon), numpy or JAX.
        method: "transform" or "inverse_transform".
        per_point: whether channels are grid points instead of levels.
        grid: (lat, lon) of the whole field.
        rows: selects this shard's rows of a (lat, ...) array, with ones in padding
            rows.

    Raises:
        ValueError: the scaler has another number of channels than the field.

    Differs from CREDIT: sums of weights are rounded once.
    """
    dim = 1 if not scaler.channels_last else x.ndim - 1
    if per_point:
        flat = x.reshape(x.shape[0], -1).T
    else:
        flat = _moved(x, dim, 0).reshape(x.shape[dim], -1)
    expected = grid[0] * grid[1] if per_point else x.shape[dim]
    if len(scaler.centroids) != expected:
        raise ValueError(
            f"a quantile scaler has {len(scaler.centroids)} channels, the field "
            f"{tuple(x.shape)} has {expected}; fit it again"
        )
    inverse = method == "inverse_transform"
    if scaler.fast_transform:
        parts = knots(scaler, np.dtype(x.dtype))
        function = partial(_evaluate, inverse)
    else:
        parts = digest(scaler, np.dtype(x.dtype))
        function = partial(_inverse if inverse else _transform, scaler)
    if per_point:
        full = (part.reshape(*grid, *part.shape[1:]) for part in parts)
        arrays = (rows(part) for part in full)
        parts = type(parts)(*(part.reshape(-1, *part.shape[2:]) for part in arrays))
    new = _each_channel(function, parts, flat)
    if per_point:
        return new.T.reshape(x.shape)
    shape = (x.shape[dim], *(n for i, n in enumerate(x.shape) if i != dim))
    return _moved(new.reshape(shape), 0, dim)


@lru_cache(maxsize=256)
def digest(scaler: QuantileScaler, dtype: np.dtype) -> Digest:
    """Converts the digests of a scaler to arrays of a dtype."""
    counts = [len(centroids) for centroids in scaler.centroids]
    shape = len(counts), max(counts, default=1)
    mean, weight = np.full(shape, np.inf, dtype), np.zeros(shape, dtype)
    for i, centroids in enumerate(scaler.centroids):
        mean[i, : len(centroids)], weight[i, : len(centroids)] = (
            centroids[:, 0],
            centroids[:, 1],
        )
    summed = np.cumsum(weight, axis=1, dtype=np.float64).astype(dtype)
    return Digest(
        mean,
        weight,
        summed - weight / dtype.type(2),
        weight.sum(axis=1, dtype=np.float64).astype(dtype),
        scaler.minimum.astype(dtype),
        scaler.maximum.astype(dtype),
        np.asarray(counts, np.int32),
    )


def _transform(scaler: QuantileScaler, channel_digest: Digest, x: Any) -> Any:
    special = scipy.special if is_numpy(x) else jax.scipy.special
    xp = np if is_numpy(x) else jnp
    share = xp.clip(_cdf(xp, channel_digest, x), scaler.min_val, scaler.max_val)
    if scaler.distribution == "normal":
        return special.ndtri(share)
    if scaler.distribution == "logistic":
        return special.logit(share)
    return share


def _inverse(scaler: QuantileScaler, channel_digest: Digest, z: Any) -> Any:
    special = scipy.special if is_numpy(z) else jax.scipy.special
    xp = np if is_numpy(z) else jnp
    share = z
    if scaler.distribution == "normal":
        # torch's formula; at -5.2 in float32 it has only one digit, with which CREDIT's
        # weights were trained.
        share = (1 + special.erf(z / np.sqrt(2.0).item())) * 0.5
    elif scaler.distribution == "logistic":
        share = special.expit(z)
    return _quantile(xp, channel_digest, share)


def _cdf(xp: Any, channel_digest: Digest, x: Any) -> Any:
    """Cumulative distribution function of one digest at x, by bridgescaler's cases."""
    mean, weight, merged, total, low, high, count = channel_digest
    size, last = mean.shape[0], xp.maximum(count - 1, 0)
    left, right = (xp.searchsorted(mean, x, side=side) for side in ("left", "right"))
    first, end = mean[0], mean[last]
    previous = merged[0] / 2 * (x - low) / _safe(xp, first - low) / total
    after = 1 - weight[last] / 2 * (high - x) / _safe(xp, high - end) / total
    at = merged[xp.minimum(right, last)] / total
    i = xp.minimum(xp.clip(left, 1, None), xp.clip(last, 1, None))
    i = xp.clip(i, None, max(size - 1, 0))
    step = (weight[i - 1] + weight[i]) / 2
    inside = step * (x - mean[i - 1]) / _safe(xp, mean[i] - mean[i - 1])
    inside = (merged[i - 1] + inside) / total
    cdf = xp.where(mean[xp.minimum(left, last)] == x, at, inside)
    cdf = xp.where(left >= count, after, cdf)
    cdf = xp.where(x < first, previous, cdf)
    cdf = xp.where(x >= high, 1.0, xp.where(x <= low, 0.0, cdf))
    ramp = (x - low) / _safe(xp, high - low)
    ramp = xp.where(high - low < xp.finfo(x.dtype).eps, 0.5, ramp)
    ramp = xp.where(x < low, 0.0, xp.where(x > high, 1.0, ramp))
    cdf = xp.where(count <= 1, ramp, cdf)
    return xp.where(count == 0, xp.nan, cdf).astype(x.dtype)


def _quantile(xp: Any, channel_digest: Digest, share: Any) -> Any:
    """Quantile function of one digest, the inverse of `_cdf`."""
    mean, _, merged, total, low, high, count = channel_digest
    last, target = xp.maximum(count - 1, 0), share * total
    right = xp.searchsorted(merged, target, side="left")
    i, j = xp.maximum(right - 1, 0), xp.minimum(right, last)
    at_start, at_end = right == 0, right >= count
    x0 = xp.where(at_start, 0.0, merged[i])
    y0 = xp.where(at_start, low, mean[i])
    x1 = xp.where(at_end, total, merged[j])
    y1 = xp.where(at_end, high, mean[j])
    width = x1 - x0
    value = y0 + (target - x0) * (y1 - y0) / xp.where(width == 0, 1e-9, width)
    value = xp.where(count <= 1, mean[0], value)
    value = xp.where(share <= 0, low, xp.where(share >= 1, high, value))
    return xp.where(count == 0, xp.nan, value).astype(share.dtype)


def _safe(xp: Any, width: Any) -> Any:
    return xp.where(width == 0, 1.0, width).astype(width.dtype)


def _each_channel(function: Callable[..., Any], parts: Any, x: Any) -> Any:
    """Applies `function(parts of a channel, x of the channel)` to every channel."""
    kind = type(parts)
    if is_numpy(x):
        pairs = zip(zip(*parts, strict=True), x, strict=True)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.stack(
                [function(kind(*arrays), values) for arrays, values in pairs]
            )
    return jax.vmap(function)(kind(*map(jnp.asarray, parts)), x)


def _moved(x: Any, source: int, target: int) -> Any:
    return (
        np.moveaxis(x, source, target)
        if is_numpy(x)
        else jnp.moveaxis(x, source, target)
    )


@lru_cache(maxsize=256)
def knots(scaler: QuantileScaler, dtype: np.dtype) -> Knots:
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
    digests = digest(scaler, np.dtype(np.float64))
    shares = np.clip(shares, low, high)
    of_channels = zip(*digests, strict=True)
    x = np.stack([_quantile(np, Digest(*arrays), shares) for arrays in of_channels])
    x = np.maximum.accumulate(x, axis=1)
    ties = np.diff(x, axis=1) <= 0
    x[:, 1:][ties] = x[:, :-1][ties] + 1e-12
    z = np.broadcast_to(z, x.shape)
    arrays = x, z, slopes(x, z), slopes(z, x)
    return Knots(*(part.astype(dtype) for part in arrays))


def slopes(x: Knots2d, y: Knots2d) -> Knots2d:
    """Slopes dy/dx at the knots, as scipy's PchipInterpolator (Fritsch and Carlson)."""
    slope = np.zeros_like(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        h = np.diff(x, axis=1)
        delta = np.diff(y, axis=1) / h
        after, previous = 2 * h[:, 1:] + h[:, :-1], h[:, 1:] + 2 * h[:, :-1]
        mean = (after + previous) / (after / delta[:, :-1] + previous / delta[:, 1:])
        slope[:, 1:-1] = np.where(delta[:, :-1] * delta[:, 1:] > 0, mean, 0.0)
        slope[:, 0] = _edge(h[:, 0], h[:, 1], delta[:, 0], delta[:, 1])
        slope[:, -1] = _edge(h[:, -1], h[:, -2], delta[:, -1], delta[:, -2])
    return slope


def _edge(h0: Any, h1: Any, d0: Any, d1: Any) -> Any:
    slope = ((2 * h0 + h1) * d0 - h0 * d1) / (h0 + h1)
    slope = np.where(np.sign(slope) != np.sign(d0), 0.0, slope)
    steep = (np.sign(d0) != np.sign(d1)) & (np.abs(slope) > 3 * np.abs(d0))
    return np.where(steep, 3 * d0, slope)


def _evaluate(inverse: bool, curve: Knots, x: Any) -> Any:
    """Cubic Hermite interpolation between the knots around x; constant beyond them."""
    indices, values, slope = curve.x, curve.z, curve.slope
    if inverse:
        indices, values, slope = curve.z, curve.x, curve.inverse_slope
    xp = np if is_numpy(x) else jnp
    i = xp.clip(xp.searchsorted(indices, x, side="left"), 1, indices.shape[0] - 1)
    x0, x1, y0, y1 = indices[i - 1], indices[i], values[i - 1], values[i]
    h = x1 - x0
    t = (x - x0) / xp.where(h == 0, 1, h)
    t2 = t * t
    t3 = t2 * t
    y = (2 * t3 - 3 * t2 + 1) * y0 + (t3 - 2 * t2 + t) * h * slope[i - 1]
    y = y + (-2 * t3 + 3 * t2) * y1 + (t3 - t2) * h * slope[i]
    y = xp.where(x <= indices[0], values[0], y)
    return xp.where(x >= indices[-1], values[-1], y)
