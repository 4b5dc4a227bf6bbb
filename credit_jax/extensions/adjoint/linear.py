"""Tangent-linear models and adjoints of forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.extensions.adjoint.maps import Fields, ForecastMap, State, check_shapes


def tangent_linear(
    forecast: ForecastMap, state: State, perturbation: State
) -> tuple[Fields, Fields]:
    """The forecast of a state, and the first-order change by a perturbation of it."""
    return linearized(forecast, state).with_tangents(perturbation)


def adjoint(
    forecast: ForecastMap, state: State, cotangents: Mapping[str, Any]
) -> tuple[Fields, dict[str, Float[Array, "batch _ time lat lon"]]]:
    """The forecast of a state, and the gradient of a linear function of its fields."""
    # Fields that are left out of the cotangents have none.
    return linearized(forecast, state).with_gradient(cotangents)


def linearized(forecast: ForecastMap, state: State) -> Linearized:
    """The linear map of perturbations of a state to perturbations of its forecast."""
    forecast.check(state)
    return Linearized(forecast, {k: jnp.asarray(x) for k, x in state.items()})


@dataclass(frozen=True, eq=False)
class Linearized:
    """A forecast, linearized at a state; each product computes its steps again."""

    forecast: ForecastMap
    state: State

    def tangent_linear(self, perturbation: State) -> Fields:
        """M x, the change of the fields; see `tangent_linear`."""
        return self.with_tangents(perturbation)[1]

    def adjoint(self, cotangents: Mapping[str, Any]) -> dict[str, Any]:
        """M' y, the gradient by the state; see `adjoint`."""
        return self.with_gradient(cotangents)[1]

    def with_tangents(self, perturbation: State) -> tuple[Fields, Fields]:
        """The fields, and M x."""
        self.forecast.check(perturbation, "perturbation")
        return self.forecast.run("tangents", dict(self.state), dict(perturbation))

    def with_gradient(
        self, cotangents: Mapping[str, Any]
    ) -> tuple[Fields, dict[str, Any]]:
        """The fields, and M' y."""
        shapes = self._shapes
        missing = {
            key: jnp.zeros(field.shape, field.dtype)
            for key, field in shapes.items()
            if key not in cotangents
        }
        full = {**missing, **cotangents}
        check_shapes(full, shapes, "cotangents")
        return self.forecast.run("gradient", dict(self.state), full)

    @cached_property
    def _shapes(self) -> dict[str, Any]:
        forecast = self.forecast
        return jax.eval_shape(
            forecast.function, forecast.weights, forecast.constants, dict(self.state)
        )


def inner_product(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """The sum of the products of two sets of fields, in float64 on the host."""
    products = [np.vdot(np.float64(a[key]), np.float64(b[key])) for key in a]
    return float(sum(products))
