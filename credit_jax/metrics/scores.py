"""Scores of a forecast, one number per variable.

With area weights `w` of mean 1, forecast `p`, target `t`, climatology `c`, and means
over samples, levels, times and grid points:

    mse     mean(w (p - t)^2)          rmse    sqrt(mse)
    mae     mean(w |p - t|)            bias    mean(w (p - t))
    r2score             1 - mse / mean(w (t - mean(w t))^2)
    log_variance_ratio  log10 var(p) - log10 var(t), var(x) = mean(w (x - mean(w x))^2)
    acc                 mean(w f a) / sqrt(mean(w f^2) mean(w a^2)), where f and a are
                        the anomalies p - c and t - c less their own means
    activity            sqrt(mean(w f^2))

They are CREDIT's (`credit/metrics/common.py`, `anomaly.py`; for the last two Bonavita
and Geer 2026, appendix A).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from credit_jax.parallel.reductions import FieldReducer

EPSILON = 1e-12

PerVariable = Float[Array, " variable"]


@dataclass(frozen=True)
class Channels:
    """Which channels belong to which variable.

    Attributes:
        counts: number of channels of each variable, in channel order.
    """

    counts: tuple[int, ...]

    @classmethod
    def of(cls, channels: Mapping[str, int]) -> Channels:
        """From the number of channels by variable."""
        return cls(tuple(channels.values()))

    def per_variable(self, values: Float[Array, " channel"]) -> PerVariable:
        """Mean over the channels of each variable."""
        matrix = np.zeros((len(self.counts), sum(self.counts)), np.float32)
        matrix[self._owner, np.arange(sum(self.counts))] = 1.0
        matrix /= np.asarray(self.counts, np.float32)[:, None]
        return jnp.matmul(jnp.asarray(matrix), values, precision="highest")

    def per_channel(self, values: PerVariable) -> Float[Array, "1 channel 1 1 1"]:
        """The value of its variable for each channel, to broadcast against fields."""
        return values[self._owner].reshape(1, -1, 1, 1, 1)

    @property
    def _owner(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.counts)), self.counts)


@dataclass(frozen=True)
class Pair:
    """A forecast, its target, and how they are averaged.

    Attributes:
        pred: (batch, channel, time, rows, lon) local, float32.
        target: like `pred`.
        climatology: (1, channel, 1, rows, lon) local; None where there is none.
        channels: which channel is which variable.
        reducer: global means.
        row_weights: (lat,) area weight of every row; None weighs all alike.
    """

    pred: Array
    target: Array
    climatology: Array | None
    channels: Channels
    reducer: FieldReducer
    row_weights: np.ndarray | None

    def mean(self, values: Array) -> PerVariable:
        """Weighted mean of each variable."""
        means = self.reducer.channel_mean(values, self.row_weights)
        return self.channels.per_variable(means)

    def centered(self, values: Array) -> Array:
        """`values` less the weighted mean of their variable."""
        return values - self.channels.per_channel(self.mean(values))

    def anomaly(self, values: Array) -> Array:
        """`values` less the climatology, less the mean of that."""
        assert self.climatology is not None, "checked when the metrics are built"
        return self.centered(values - self.climatology)


def mse(pair: Pair) -> PerVariable:
    """Mean squared error."""
    return pair.mean(jnp.square(pair.pred - pair.target))


def rmse(pair: Pair) -> PerVariable:
    """Root mean squared error."""
    return jnp.sqrt(mse(pair))


def mae(pair: Pair) -> PerVariable:
    """Mean absolute error."""
    return pair.mean(jnp.abs(pair.pred - pair.target))


def bias(pair: Pair) -> PerVariable:
    """Mean error."""
    return pair.mean(pair.pred - pair.target)


def r2score(pair: Pair) -> PerVariable:
    """1 less the squared error over the variance of the target."""
    total = pair.mean(jnp.square(pair.centered(pair.target)))
    return 1.0 - mse(pair) / (total + EPSILON)


def log_variance_ratio(pair: Pair) -> PerVariable:
    """log10 of the variance of the forecast over that of the target."""
    variances = [
        pair.mean(jnp.square(pair.centered(field)))
        for field in (pair.pred, pair.target)
    ]
    return jnp.log10(variances[0] + EPSILON) - jnp.log10(variances[1] + EPSILON)


def acc(pair: Pair) -> PerVariable:
    """Correlation of the anomalies of forecast and target."""
    forecast, truth = pair.anomaly(pair.pred), pair.anomaly(pair.target)
    spread = [
        jnp.sqrt(pair.mean(jnp.square(field)) + EPSILON) for field in (forecast, truth)
    ]
    return pair.mean(forecast * truth) / (spread[0] * spread[1])


def activity(pair: Pair) -> PerVariable:
    """Standard deviation of the anomaly of the forecast."""
    return jnp.sqrt(pair.mean(jnp.square(pair.anomaly(pair.pred))) + EPSILON)


SCORES: dict[str, Callable[[Pair], PerVariable]] = {
    "rmse": rmse,
    "mse": mse,
    "mae": mae,
    "bias": bias,
    "r2score": r2score,
    "log_variance_ratio": log_variance_ratio,
    "acc": acc,
    "activity": activity,
}
NEEDS_CLIMATOLOGY = ("acc", "activity")
