"""Metrics: scores of each variable, with the same value on every mesh."""

from credit_jax.metrics.base import Measure, MetricEntry, Pair
from credit_jax.metrics.build import (
    Metrics,
    build_metrics,
    metric_names,
    needs_climatology,
)
from credit_jax.metrics.registry import METRICS
from credit_jax.metrics.settings import metric_settings

__all__ = [
    "METRICS",
    "Measure",
    "MetricEntry",
    "Metrics",
    "Pair",
    "build_metrics",
    "metric_names",
    "metric_settings",
    "needs_climatology",
]
