"""Forward passes and forecasts of a trained model, on any mesh."""

from credit_jax.forecast.forecaster import Forecaster

__all__ = ["Forecaster"]
