"""Smooth noise on the sphere, from spherical harmonics."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float

from credit_jax.physics.harmonics import legendre_functions

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
