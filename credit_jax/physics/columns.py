"""Levels of a column and integrals over pressure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from credit_jax.physics.arrays import by_level

Values = Float[Any, "batch level time lat lon"]
Layers = Float[Any, "batch layer time lat lon"]
Surface = Float[Any, "batch 1 time lat lon"]


@dataclass(frozen=True, eq=False)
class Levels:
    """Pressures p = a + b ps; b is 0 for pressure levels.

    Attributes:
        a: (n,) Pa.
        b: (n,) no unit.
        midpoint: fields are means of the n - 1 layers between these pressures;
            otherwise values at the n pressures, and integrals are trapezoidal.
    """

    a: Float[np.ndarray, " n"]
    b: Float[np.ndarray, " n"]
    midpoint: bool

    @property
    def num_levels(self) -> int:
        """Levels of a field."""
        return len(self.a) - 1 if self.midpoint else len(self.a)

    def thickness(self, surface_pressure: Surface) -> Layers:
        """Pa, of each of the n - 1 layers.

        Differs from CREDIT: da + db ps, not the difference of two rounded pressures.
        """
        layer = by_level(np.diff(self.b), surface_pressure) * surface_pressure
        return layer + by_level(np.diff(self.a), surface_pressure)

    def integral(
        self,
        values: Values,
        surface_pressure: Surface,
        start: int = 0,
        stop: int | None = None,
    ) -> Surface:
        """Integral over pressure of the levels start, ..., stop - 1.

        Args:
            values: any quantity, on `num_levels` levels.
            surface_pressure: Pa; any value for pressure levels.
            start, stop: levels, default all.

        Raises:
            ValueError: another number of levels.
        """
        layers, place = self._layers(values, start, stop)
        return (layers * self.thickness(surface_pressure)[:, place]).sum(
            axis=1, keepdims=True
        )

    def surface_part(self, values: Values) -> Surface:
        """The integral with thicknesses db: its derivative by surface pressure."""
        layers, _ = self._layers(values, 0, None)
        return (layers * by_level(np.diff(self.b), values)).sum(axis=1, keepdims=True)

    def _layers(
        self, values: Values, start: int, stop: int | None
    ) -> tuple[Layers, slice]:
        """Means of the layers between levels, and which layers they are."""
        if values.shape[1] != self.num_levels:
            raise ValueError(
                f"a field has {values.shape[1]} levels; the coefficients and "
                f"midpoint: {str(self.midpoint).lower()} are for {self.num_levels}"
            )
        values = values[:, start:stop]
        if self.midpoint:
            return values, slice(start, stop)
        stop = self.num_levels if stop is None else min(stop, self.num_levels)
        return 0.5 * (values[:, :-1] + values[:, 1:]), slice(start, stop - 1)
