"""Smooth noise on the sphere, from spherical harmonics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

# Harmonics whose variance is below this fraction of the largest are left out.
_SMALLEST = 1e-8


@dataclass(frozen=True, eq=False)
class SphericalNoise:
    """Isotropic Gaussian fields of variance 1 on a grid of latitudes and longitudes.

    The correlation of two points at an angle t is close to exp(-(t / scale)^2 / 2). It
    is a sum of spherical harmonics whose variance falls as exp(-l (l + 1) scale^2 / 2)
    with the degree l, so that it has neither a seam nor a singularity at the poles.

    Attributes:
        latitude, longitude: (lat,) and (lon,) degrees.
        length_scale: degrees.
    """

    latitude: np.ndarray
    longitude: np.ndarray
    length_scale: float

    def draw(
        self, rng: np.random.Generator, shape: tuple[int, int, int]
    ) -> Float[np.ndarray, "level lat lon"]:
        """Draws independent fields, one for each level.

        Args:
            rng: generator of the numbers.
            shape: (level, lat, lon).
        """
        degrees = len(self._deviations)
        random = rng.standard_normal((shape[0], 2, degrees, degrees))
        random *= self._deviations[:, None]
        # (level, 2, order, lat): sums over degrees.
        rows = np.einsum("kclm,lmy->kcmy", random, self._legendre)
        angles = np.deg2rad(self.longitude)[None] * np.arange(degrees)[:, None]
        waves = np.stack([np.cos(angles), np.sin(angles)])
        return np.einsum("kcmy,cmx->kyx", rows, waves)

    @cached_property
    def _deviations(self) -> np.ndarray:
        """(degree,) standard deviation of each coefficient."""
        scale = np.deg2rad(self.length_scale)
        last = int(np.ceil(np.sqrt(-2 * np.log(_SMALLEST)) / scale))
        degree = np.arange(last + 1)
        power = np.exp(-degree * (degree + 1) * scale**2 / 2)
        return np.sqrt(power / np.sum((2 * degree + 1) * power))

    @cached_property
    def _legendre(self) -> np.ndarray:
        return legendre_functions(self.latitude, len(self._deviations))


def legendre_functions(
    latitude: np.ndarray, count: int
) -> Float[np.ndarray, "degree order lat"]:
    """Returns the Legendre functions P of real spherical harmonics.

    Of each degree, the sum over orders of P^2 is 2 degree + 1: the addition theorem,
    which makes the variance of a random field the same everywhere.

    Args:
        latitude: (lat,) degrees.
        count: number of degrees, from 0.
    """
    sine = np.sin(np.deg2rad(latitude))
    cosine = np.cos(np.deg2rad(latitude))
    polynomials = np.zeros((count, count, len(sine)))
    diagonal = np.ones_like(sine)
    for m in range(count):
        if m > 0:
            diagonal = diagonal * cosine * np.sqrt((2 * m + 1) / (2 * m))
        polynomials[m, m] = diagonal
        if m + 1 < count:
            polynomials[m + 1, m] = np.sqrt(2 * m + 3) * sine * diagonal
        for n in range(m + 2, count):
            a = np.sqrt((4 * n**2 - 1) / (n**2 - m**2))
            b = np.sqrt(((n - 1) ** 2 - m**2) / (4 * (n - 1) ** 2 - 1))
            polynomials[n, m] = a * (
                sine * polynomials[n - 1, m] - b * polynomials[n - 2, m]
            )
    polynomials[:, 1:] *= np.sqrt(2)
    return polynomials
