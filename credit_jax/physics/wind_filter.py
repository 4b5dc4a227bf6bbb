"""Smoothing where the wind is strong, against stripes of two grid lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.fields import FieldContext
from credit_jax.physics.arrays import clip, namespace
from credit_jax.physics.rows import fill_padding, global_mean, num_rows, with_halo

Values = Float[Any, "batch level time rows lon"]
Mask = Float[Any, "batch 1 time rows lon"]

_LARGEST_FACTOR = 4.0


@dataclass(frozen=True)
class Kernel:
    """A separable convolution with zeros beyond all edges.

    Attributes:
        lat, lon: weights along each dim, an odd number of them.
    """

    lat: Float[np.ndarray, " n"]
    lon: Float[np.ndarray, " m"]

    def __call__(self, x: Values, context: FieldContext | None) -> Values:
        """The sum over neighbors; exact on split rows."""
        width = len(self.lat) // 2
        wide = with_halo(x, width, context) if width else x
        rows = _weighted_slices(wide, self.lat, x.shape[-2], axis=3)
        xp, width = namespace(x), len(self.lon) // 2
        wide = xp.pad(rows, [(0, 0)] * 4 + [(width, width)])
        return _weighted_slices(wide, self.lon, x.shape[-1], axis=4)


def gaussian(sigma: float, reach: float) -> Float[np.ndarray, " n"]:
    """Weights exp(-(i / sigma)^2 / 2), sum 1, of about 2 reach grid points, odd.

    >>> len(gaussian(1.0, 3))
    7
    """
    size = int(2 * reach + 1) | 1
    weights = np.exp(-0.5 * ((np.arange(size) - size // 2) / sigma) ** 2)
    return weights / weights.sum()


def strong_wind_mask(
    u: Mask,
    v: Mask,
    threshold: float,
    dilation: Kernel,
    falloff: Kernel,
    context: FieldContext | None,
) -> Mask:
    """0 far from winds above a threshold, 1 among them, smooth between.

    Args:
        u, v: wind of one level.
        threshold: in the units of the wind.
        dilation: of ones: grows the region.
        falloff: smooths its edge.
        context: see `physics.rows`.
    """
    xp = namespace(u)
    strong = xp.sqrt(u**2 + v**2) > threshold
    return falloff(clip(dilation(strong.astype(u.dtype), context), 0.0, 1.0), context)


def blend_smoothed(
    field: Values,
    mask: Mask,
    smoothing: Kernel,
    context: FieldContext | None,
    *,
    preserve_amplitude: bool = False,
) -> Values:
    """`mask smoothed + (1 - mask) field`.

    Args:
        field: any levels.
        mask: one level, in [0, 1].
        smoothing: of the field.
        context: see `physics.rows`.
        preserve_amplitude: scale the smoothed field so that its mean square under the
            mask is that of the field, by 4 at most.
    """
    smoothed = smoothing(field, context)
    if preserve_amplitude:
        smoothed = smoothed * _factor(field, smoothed, mask, context)
    return mask * smoothed + (1 - mask) * field


def _factor(
    field: Values, smoothed: Values, mask: Mask, context: FieldContext | None
) -> Any:
    """min(sqrt(sum(mask field^2) / (sum(mask smoothed^2) + 1e-12)), 4).

    Differs from CREDIT: the gradient is 0, not NaN, where the mask is 0 everywhere.
    """
    xp = namespace(field)
    points = num_rows(field, context) * field.shape[-1]
    squares = [
        points * global_mean(fill_padding(mask * x**2, 0.0, context), None, context)
        for x in (field, smoothed)
    ]
    ratio = squares[0] / (squares[1] + 1e-12)
    some = ratio > 0
    root = xp.sqrt(xp.where(some, ratio, xp.ones_like(ratio)))
    return clip(xp.where(some, root, xp.zeros_like(root)), high=_LARGEST_FACTOR)


def _weighted_slices(x: Any, weights: np.ndarray, size: int, axis: int) -> Any:
    """sum_i weights[i] x[i : i + size] along a dim."""
    before = (slice(None),) * axis
    total = x[(*before, slice(0, size))] * x.dtype.type(weights[0])
    for i, weight in enumerate(weights[1:], 1):
        total = total + x[(*before, slice(i, i + size))] * x.dtype.type(weight)
    return total
