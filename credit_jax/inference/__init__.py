"""Inference: forward passes and forecasts of a trained model, on any mesh."""

from credit_jax.inference.forecaster import Forecaster

__all__ = ["Forecaster"]
