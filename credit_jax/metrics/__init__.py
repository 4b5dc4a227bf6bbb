"""Metrics of the validation, computed with the forecast, exact on every mesh."""

from credit_jax.metrics.build import build_metrics, metric_names
from credit_jax.metrics.scores import NEEDS_CLIMATOLOGY, SCORES

__all__ = ["NEEDS_CLIMATOLOGY", "SCORES", "build_metrics", "metric_names"]
