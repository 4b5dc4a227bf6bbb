"""Scores of a forecast, with a value per variable.

`w` are area weights of mean 1, `p` is the forecast, `t` the target, `c` the
climatology, and means are over samples, levels, times and grid points:

    mse     mean(w (p - t)^2)          rmse    sqrt(mse)
    mae     mean(w |p - t|)            bias    mean(w (p - t))
    r2score             1 - mse / mean(w (t - mean(w t))^2)
    log_variance_ratio  log10 var(p) - log10 var(t), var(x) = mean(w (x - mean(w x))^2)
    acc                 mean(w f a) / sqrt(mean(w f^2) mean(w a^2)), where f and a are
                        the anomalies p - c and t - c minus their weighted means
    activity            sqrt(mean(w f^2))

They are CREDIT's (`credit/metrics/common.py`, `anomaly.py`; for the last two Bonavita
and Geer 2026, appendix A).
"""

from __future__ import annotations

import jax.numpy as jnp

from credit_jax.config import StrictModel
from credit_jax.metrics.base import Pair, PerVariable

EPSILON = 1e-12


def mse(pair: Pair) -> PerVariable:
    """Mean squared error."""
    return pair.mean(jnp.square(pair.prediction - pair.target))


def rmse(pair: Pair) -> PerVariable:
    """Root mean squared error."""
    return jnp.sqrt(mse(pair))


def mae(pair: Pair) -> PerVariable:
    """Mean absolute error."""
    return pair.mean(jnp.abs(pair.prediction - pair.target))


def bias(pair: Pair) -> PerVariable:
    """Mean error."""
    return pair.mean(pair.prediction - pair.target)


def r2score(pair: Pair) -> PerVariable:
    """Coefficient of determination: 1 - mse / variance of the target."""
    total = pair.mean(jnp.square(pair.centered(pair.target)))
    return 1.0 - mse(pair) / (total + EPSILON)


class RatioParameters(StrictModel):
    """Parameters of `log_variance_ratio`.

    Attributes:
        eps: added to both variances.
    """

    eps: float = EPSILON


def log_variance_ratio(pair: Pair, *, eps: float = EPSILON) -> PerVariable:
    """Base-10 logarithm of variance of the forecast / variance of the target."""
    variances = [
        pair.mean(jnp.square(pair.centered(field)))
        for field in (pair.prediction, pair.target)
    ]
    return jnp.log10(variances[0] + eps) - jnp.log10(variances[1] + eps)


def acc(pair: Pair) -> PerVariable:
    """Anomaly correlation coefficient of forecast and target."""
    forecast, truth = pair.anomaly(pair.prediction), pair.anomaly(pair.target)
    deviation = [
        jnp.sqrt(pair.mean(jnp.square(field)) + EPSILON) for field in (forecast, truth)
    ]
    return pair.mean(forecast * truth) / (deviation[0] * deviation[1])


def activity(pair: Pair) -> PerVariable:
    """Standard deviation of the anomaly of the forecast."""
    return jnp.sqrt(pair.mean(jnp.square(pair.anomaly(pair.prediction))) + EPSILON)
