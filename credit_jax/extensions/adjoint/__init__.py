"""Forecasts as differentiable functions of their initial state, and their adjoints.

>>> forecast = adjoint.forecast_map(forecaster, initial, steps=12)
>>> fields, tangents = adjoint.tangent_linear(forecast, state, perturbation)
>>> fields, gradient = adjoint.adjoint(forecast, state, cotangents)
"""

from credit_jax.extensions.adjoint.growth import (
    SingularVectors,
    area_weights,
    singular_vectors,
)
from credit_jax.extensions.adjoint.maps import (
    ForecastMap,
    Linearized,
    adjoint,
    forecast_map,
    inner_product,
    linearized,
    tangent_linear,
)
from credit_jax.extensions.adjoint.optimization import TrajectoryLoss, optimize_state

__all__ = [
    "ForecastMap",
    "Linearized",
    "SingularVectors",
    "TrajectoryLoss",
    "adjoint",
    "area_weights",
    "forecast_map",
    "inner_product",
    "linearized",
    "optimize_state",
    "singular_vectors",
    "tangent_linear",
]
