"""The metrics by CREDIT's names: one line each."""

from credit_jax.metrics.base import MetricEntry
from credit_jax.metrics.scores import (
    acc,
    activity,
    bias,
    log_variance_ratio,
    mae,
    mse,
    r2score,
    rmse,
)

METRICS: dict[str, MetricEntry] = {
    "rmse": MetricEntry(rmse),
    "mse": MetricEntry(mse),
    "mae": MetricEntry(mae),
    "bias": MetricEntry(bias),
    "r2score": MetricEntry(r2score),
    "log_variance_ratio": MetricEntry(log_variance_ratio),
    "acc": MetricEntry(acc, needs_climatology=True),
    "activity": MetricEntry(activity, needs_climatology=True),
}
