"""Metrics: scores of each variable, with the same value on every mesh."""

from credit_jax.metrics.scores import (
    METRICS,
    ConfiguredMetric,
    Measure,
    Metrics,
    build_metrics,
    parse_metrics,
)

__all__ = [
    "METRICS",
    "ConfiguredMetric",
    "Measure",
    "Metrics",
    "build_metrics",
    "parse_metrics",
]
