"""Forecasts of a trained model."""

from credit_jax.forecast.forecaster import Forecaster

__all__ = ["Forecaster"]
