"""Vertical levels, and integrals over pressure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.physics.arrays import by_level

LevelFields = Float[Any, "batch level time lat lon"]
Layers = Float[Any, "batch layer time lat lon"]
Surface = Float[Any, "batch 1 time lat lon"]


@dataclass(frozen=True, eq=False)
class VerticalLevels:
    """Levels of pressure p = a + b ps; b is 0 for pressure levels.

    Attributes:
        a: (n,) Pa.
        b: (n,) dimensionless.
        midpoint: if True, fields are means of the n - 1 layers between these pressures;
            else they are values at the n pressures, and integrals are trapezoidal.
        origin: file and names of a and b, for errors.
        numbers: numbers of the levels of fields in that file; None if it has none.
    """

    a: Float[np.ndarray, " n"]
    b: Float[np.ndarray, " n"]
    midpoint: bool
    origin: str = "levels"
    numbers: tuple[float, ...] | None = None

    @property
    def num_levels(self) -> int:
        """Number of levels of a field."""
        return len(self.a) - 1 if self.midpoint else len(self.a)

    def thickness(self, surface_pressure: Surface) -> Layers:
        """Thickness of each of the n - 1 layers, Pa.

        Differs from CREDIT: da + db ps, not the difference of two rounded pressures.
        """
        layer = by_level(np.diff(self.b), surface_pressure) * surface_pressure
        return layer + by_level(np.diff(self.a), surface_pressure)

    def integral(
        self,
        values: LevelFields,
        surface_pressure: Surface,
        start: int = 0,
        stop: int | None = None,
    ) -> Surface:
        """Integrates over the pressure of the levels start, ..., stop - 1.

        Returns:
            (batch, 1, time, lat, lon), in the unit of `values` times Pa.
        """
        layers, index = self._layers(values, start, stop)
        return (layers * self.thickness(surface_pressure)[:, index]).sum(
            axis=1, keepdims=True
        )

    def surface_part(self, values: LevelFields) -> Surface:
        """Derivative of the integral by surface pressure: thicknesses are db."""
        layers, _ = self._layers(values, 0, None)
        return (layers * by_level(np.diff(self.b), values)).sum(axis=1, keepdims=True)

    def _layers(
        self, values: LevelFields, start: int, stop: int | None
    ) -> tuple[Layers, slice]:
        """Layer means of `values`, and the indices of their layers."""
        if values.shape[1] != self.num_levels:
            raise ValueError(
                f"{self.origin}: {len(self.a)} values, which with midpoint: "
                f"{str(self.midpoint).lower()} are for fields of {self.num_levels} "
                f"levels; a field has {values.shape[1]}"
            )
        values = values[:, start:stop]
        if self.midpoint:
            return values, slice(start, stop)
        stop = self.num_levels if stop is None else min(stop, self.num_levels)
        return 0.5 * (values[:, :-1] + values[:, 1:]), slice(start, stop - 1)
