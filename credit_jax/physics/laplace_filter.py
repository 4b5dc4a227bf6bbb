"""Filters of rollouts: zonal waves near the poles, diffusion, strong winds.

`credit.pol_lapdiff_filt` takes the rows for those of a Gaussian grid, from north to
south. Its steps are linear and alike at all longitudes: of each zonal wavenumber they
are one matrix over the rows, which is computed here once, in float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from credit_jax.named_fields import FieldContext
from credit_jax.parallel.domain.halo_exchange import halo_exchange
from credit_jax.parallel.rows.layout import Field
from credit_jax.physics.arrays import (
    clip,
    fill_padding,
    global_mean,
    namespace,
    num_rows,
)

AllRows = Float[Any, "batch level time lat lon"]
# (order, row, row): what becomes of the rows of each zonal wavenumber.
Matrices = Float[np.ndarray, "order rows rows"]

_RADIUS = 6.37122e6  # m, of CREDIT's filter
# Rows at each pole that are filtered, and the ramp of diffusion there.
_POLAR_ROWS = 10
# Period of the last wave that is left near the poles, in grid points.
_PERIOD = 100
STRENGTH_OF_WINDS = 2e16  # m^4, of a step
SMALLEST_GRID = (2 * _POLAR_ROWS + 1, 2)


def filter_scalar(x: AllRows, steps: int, strength: float) -> AllRows:
    """Repeats `x + strength ramp laplacian(x)`, `steps` times; strength is in m^2."""
    rows, columns = x.shape[-2:]
    waves = _of_rows(x)
    waves = _applied(_scalar_matrices(rows, columns, steps, strength), waves)
    return _to_field(waves, x)


def filter_wind(u: AllRows, v: AllRows, steps: int) -> tuple[AllRows, AllRows]:
    """Filters the divergence of a wind, `steps` times."""
    rows, columns = u.shape[-2:]
    xp = namespace(u, v)
    # With i u the matrices are real.
    both = xp.concatenate([1j * _of_rows(u), _of_rows(v)], axis=1)
    both = _applied(_wind_matrices(rows, columns, steps), both)
    return _to_field(-1j * both[:, :rows], u), _to_field(both[:, rows:], v)


def _of_rows(x: AllRows) -> Any:
    """Zonal waves (order, row, ...) without those that are too short near the poles."""
    xp = namespace(x)
    waves = xp.moveaxis(xp.fft.rfft(x, axis=-1, norm="forward"), (-1, -2), (0, 1))
    # Factor of each wave: 0 for periods below 100 grid points near the poles. CREDIT
    # leaves out the row at the north pole and, of the last wave, one of its two complex
    # halves. Where the grid has fewer than 150 columns it leaves all waves.
    rows, columns = x.shape[-2:]
    orders = columns // 2 + 1
    mask = np.ones((rows, orders))
    last = int(np.argmin(abs(columns / np.arange(1, orders) - _PERIOD)))
    if last > 0:
        polar = [*range(1, _POLAR_ROWS + 1), *range(-_POLAR_ROWS, 0)]
        mask[polar, last:] = 0.0
        mask[polar, last] = 0.5
    left = xp.asarray(mask.T, x.dtype)
    return waves * left.reshape(*left.shape, *[1] * (waves.ndim - 2))


def _applied(matrices: Matrices, waves: Any) -> Any:
    """Multiplies the rows of the first wavenumbers; the others have no diffusion."""
    xp, count = namespace(waves), len(matrices)
    flat = waves[:count].reshape(count, waves.shape[1], -1)
    parts = xp.concatenate([flat.real, flat.imag], axis=-1)
    matrices = xp.asarray(matrices, parts.dtype)
    if xp is np:
        parts = matrices @ parts
    else:
        parts = jnp.matmul(matrices, parts, precision=jax.lax.Precision.HIGHEST)
    real, imaginary = xp.split(parts, 2, axis=-1)
    shape = (count, *waves.shape[1:])
    return xp.concatenate([(real + 1j * imaginary).reshape(shape), waves[count:]])


def _to_field(waves: Any, like: AllRows) -> AllRows:
    """The field of zonal waves (order, row, ...)."""
    xp = namespace(waves)
    waves = xp.moveaxis(waves, (0, 1), (-1, -2))
    field = xp.fft.irfft(waves, n=like.shape[-1], axis=-1, norm="forward")
    return field.astype(like.dtype)


def _ramp(rows: int) -> Float[np.ndarray, " rows"]:
    """Factor of diffusion in each row: rises from the poles over ten rows."""
    ramp = np.ones(rows)
    edge = 1 / (1 + np.exp(-np.linspace(-6, 6, _POLAR_ROWS)))
    ramp[:_POLAR_ROWS], ramp[-_POLAR_ROWS:] = edge, edge[::-1]
    return ramp


@functools.lru_cache(maxsize=8)
def _scalar_matrices(rows: int, columns: int, steps: int, strength: float) -> Matrices:
    """(I + strength ramp (D_y D_y + D_x D_x))^steps of each wavenumber."""
    factor = strength * (2 * math.pi / _RADIUS) ** 2 * _ramp(rows)[:, None]
    matrices = []
    for scalar, along, across in _harmonics(rows, columns):
        x, y = along.T @ scalar, across.T @ scalar
        step = np.eye(rows) + factor * (y @ y - x @ x)
        matrices.append(np.linalg.matrix_power(step, steps))
    return np.stack(matrices)


@functools.lru_cache(maxsize=2)
def _wind_matrices(rows: int, columns: int, steps: int) -> Matrices:
    """Steps of (i u, v) for each wavenumber: minus the gradient of del^2 divergence."""
    weights = np.polynomial.legendre.leggauss(rows)[1]
    factor = STRENGTH_OF_WINDS * (2 * math.pi) ** 3 / _RADIUS**4
    ramp = np.tile(_ramp(rows), 2)[:, None] * factor
    matrices = []
    for scalar, along, across in _harmonics(rows, columns):
        x, y = along.T @ scalar, across.T @ scalar
        divergence = np.concatenate([along, across], axis=1) * np.tile(weights, 2)
        laplacian = (y @ across.T - x @ along.T) @ divergence
        step = np.eye(2 * rows) + ramp * (np.concatenate([x, y]) @ laplacian)
        matrices.append(np.linalg.matrix_power(step, steps))
    return np.stack(matrices)


def _harmonics(
    rows: int, columns: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Harmonics of each order: (degree, row) matrices."""
    nodes, weights = np.polynomial.legendre.leggauss(rows)
    cosine, orders = nodes[::-1], min(columns // 2 + 1, rows)
    previous: np.ndarray = np.zeros((rows + 1, rows))
    here = _legendre(0, cosine)
    for m in range(orders):
        after = _legendre(m + 1, cosine)
        degree = np.arange(rows)[:, None]
        down = np.sqrt(np.maximum((degree + m) * (degree - m + 1), 0)) * previous[:-1]
        up = np.sqrt(np.maximum((degree - m) * (degree + m + 1), 0)) * after[:-1]
        across = 0.5 * (down - up) if m else -up
        left = (
            np.sqrt(np.maximum((degree - m + 1) * (degree - m + 2), 0)) * previous[1:]
        )
        right = np.sqrt((degree + m + 1) * (degree + m + 2)) * after[1:]
        along = 0.5 * np.sqrt((2 * degree + 1) / (2 * degree + 3)) * (left + right)
        # Nothing varies along longitude at order 0, nor is there a phase at Nyquist's.
        if m == 0 or 2 * m == columns:
            along = np.zeros_like(along)
        real = degree >= m
        yield here[:-1] * weights, np.where(real, along, 0.0), np.where(real, across, 0)
        previous, here = here, after


def _legendre(
    order: int, cosine: Float[np.ndarray, " rows"]
) -> Float[np.ndarray, "degrees rows"]:
    """Orthonormal Legendre functions of an order, of degree 0 to the number of rows."""
    count = len(cosine) + 1
    functions = np.zeros((count, len(cosine)))
    if order >= count:
        return functions
    sine = np.sqrt((1 + cosine) * (1 - cosine))
    start = np.full_like(cosine, 1 / math.sqrt(4 * math.pi))
    for m in range(1, order + 1):
        start = start * sine * math.sqrt((2 * m + 1) / (2 * m))
    functions[order] = start
    if order + 1 < count:
        functions[order + 1] = math.sqrt(2 * order + 3) * cosine * start
    for n in range(order + 2, count):
        a = math.sqrt((4 * n**2 - 1) / (n**2 - order**2))
        b = math.sqrt(((n - 1) ** 2 - order**2) / (4 * (n - 1) ** 2 - 1))
        functions[n] = a * (cosine * functions[n - 1] - b * functions[n - 2])
    return functions


LevelFields = Float[Any, "batch level time rows lon"]
Mask = Float[Any, "batch 1 time rows lon"]

_LARGEST_FACTOR = 4.0


@dataclass(frozen=True)
class Kernel:
    """A separable convolution with zeros beyond all edges."""

    # Weights along each dim, of odd length.
    lat: Float[np.ndarray, " n"]
    lon: Float[np.ndarray, " m"]

    def __call__(self, x: LevelFields, context: FieldContext | None) -> LevelFields:
        """Convolves a field; the same result on split rows as on whole ones."""
        xp, width = namespace(x), len(self.lat) // 2
        # Neighboring rows, and zeros beyond the poles.
        wide = x
        if width and context is None:
            wide = xp.pad(x, [(0, 0)] * 3 + [(width, width), (0, 0)])
        elif width and context is not None:
            rows_of_x = replace(context.reducer.rows, dim=x.ndim - 2)
            wide = halo_exchange(Field(x, rows_of_x), width)
        rows = _weighted_slices(wide, self.lat, x.shape[-2], axis=3)
        width = len(self.lon) // 2
        wide = xp.pad(rows, [(0, 0)] * 4 + [(width, width)])
        return _weighted_slices(wide, self.lon, x.shape[-1], axis=4)


def gaussian(sigma: float, reach: float) -> Float[np.ndarray, " n"]:
    """Gaussian weights exp(-(i / sigma)^2 / 2), |i| up to `reach`, with sum 1."""
    # 2 reach + 1, rounded to odd.
    size = int(2 * reach + 1) | 1
    weights = np.exp(-0.5 * ((np.arange(size) - size // 2) / sigma) ** 2)
    return weights / weights.sum()


def blend_smoothed(
    field: LevelFields,
    mask: Mask,  # in [0, 1]
    smoothing: Kernel,
    context: FieldContext | None,
    *,
    preserve_amplitude: bool = False,
) -> LevelFields:
    """Blends a field with its smoothed values: `mask smoothed + (1 - mask) field`."""
    smoothed = smoothing(field, context)
    # Scaled so that its mean square under the mask is that of the field.
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
