"""Metrics: scores of each variable, with the same value on every mesh."""

from credit_jax.metrics.scores import METRICS as METRICS
from credit_jax.metrics.scores import ConfiguredMetric as ConfiguredMetric
from credit_jax.metrics.scores import Measure as Measure
from credit_jax.metrics.scores import Metrics as Metrics
from credit_jax.metrics.scores import build_metrics as build_metrics
from credit_jax.metrics.scores import parse_metrics as parse_metrics
