"""The registry of metrics, by CREDIT's names."""

from credit_jax.config.components import Registry
from credit_jax.metrics.base import AnomalyParameters, MetricEntry
from credit_jax.metrics.scores import (
    RatioParameters,
    acc,
    activity,
    bias,
    log_variance_ratio,
    mae,
    mse,
    r2score,
    rmse,
)

METRICS: Registry[MetricEntry] = Registry("metric", MetricEntry)
METRICS |= {
    "rmse": MetricEntry(rmse, scale_power=1),
    "mse": MetricEntry(mse, scale_power=2),
    "mae": MetricEntry(mae, scale_power=1),
    "bias": MetricEntry(bias, scale_power=1),
    "r2score": MetricEntry(r2score, scale_power=0),
    "log_variance_ratio": MetricEntry(
        log_variance_ratio, RatioParameters, scale_power=0
    ),
    "acc": MetricEntry(acc, AnomalyParameters, scale_power=0),
    "activity": MetricEntry(activity, AnomalyParameters, scale_power=1),
}
