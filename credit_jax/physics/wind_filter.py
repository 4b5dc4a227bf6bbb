"""Smoothing where the wind is strong, which removes noise of two grid lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.named_fields import FieldContext
from credit_jax.physics.arrays import clip, namespace
from credit_jax.physics.rows import fill_padding, global_mean, num_rows, with_halo

LevelFields = Float[Any, "batch level time rows lon"]
Mask = Float[Any, "batch 1 time rows lon"]

_LARGEST_FACTOR = 4.0


@dataclass(frozen=True)
class Kernel:
    """A separable convolution with zeros beyond all edges.

    Attributes:
        lat, lon: weights along each dim, of odd length.
    """

    lat: Float[np.ndarray, " n"]
    lon: Float[np.ndarray, " m"]

    def __call__(self, x: LevelFields, context: FieldContext | None) -> LevelFields:
        """Convolves a field; the same result on split rows as on whole ones."""
        width = len(self.lat) // 2
        wide = with_halo(x, width, context) if width else x
        rows = _weighted_slices(wide, self.lat, x.shape[-2], axis=3)
        xp, width = namespace(x), len(self.lon) // 2
        wide = xp.pad(rows, [(0, 0)] * 4 + [(width, width)])
        return _weighted_slices(wide, self.lon, x.shape[-1], axis=4)


def gaussian(sigma: float, reach: float) -> Float[np.ndarray, " n"]:
    """Gaussian weights exp(-(i / sigma)^2 / 2) with sum 1.

    Args:
        sigma: standard deviation, in grid points.
        reach: largest |i|, in grid points; the length is 2 reach + 1, rounded to odd.

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
    """A smooth mask that is 1 where the wind exceeds a threshold, and 0 far from there.

    Args:
        u, v: wind of one level.
        threshold: threshold in the unit of the wind.
        dilation: kernel of ones, which grows the region of strong wind.
        falloff: kernel that smooths the edge of the region.
        context: see `physics.rows`.
    """
    xp = namespace(u)
    strong = xp.sqrt(u**2 + v**2) > threshold
    return falloff(clip(dilation(strong.astype(u.dtype), context), 0.0, 1.0), context)


def blend_smoothed(
    field: LevelFields,
    mask: Mask,
    smoothing: Kernel,
    context: FieldContext | None,
    *,
    preserve_amplitude: bool = False,
) -> LevelFields:
    """Blends a field with its smoothed values: `mask smoothed + (1 - mask) field`.

    Args:
        field: any quantity, on any levels.
        mask: one level, in [0, 1].
        smoothing: kernel that smooths the field.
        context: see `physics.rows`.
        preserve_amplitude: whether to scale the smoothed field, by a factor of at most
            4, so that its mean square under the mask is that of the field.
    """
    smoothed = smoothing(field, context)
    if preserve_amplitude:
        # Amplitude factor min(sqrt(sum(mask f^2) / (sum(mask smoothed^2) + 1e-12)), 4).
        # Differs from CREDIT: the gradient is 0, not NaN, where the mask is 0
        # everywhere.
        xp = namespace(field)
        points = num_rows(field, context) * field.shape[-1]
        squares = [
            points * global_mean(fill_padding(mask * x**2, 0.0, context), None, context)
            for x in (field, smoothed)
        ]
        ratio = squares[0] / (squares[1] + 1e-12)
        some = ratio > 0
        root = xp.sqrt(xp.where(some, ratio, xp.ones_like(ratio)))
        factor = clip(xp.where(some, root, xp.zeros_like(root)), high=_LARGEST_FACTOR)
        smoothed = smoothed * factor
    return mask * smoothed + (1 - mask) * field


def _weighted_slices(x: Any, weights: np.ndarray, size: int, axis: int) -> Any:
    """sum_i weights[i] x[i : i + size] along a dim."""
    previous = (slice(None),) * axis
    total = x[(*previous, slice(0, size))] * x.dtype.type(weights[0])
    for i, weight in enumerate(weights[1:], 1):
        total = total + x[(*previous, slice(i, i + size))] * x.dtype.type(weight)
    return total
