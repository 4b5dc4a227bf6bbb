"""Metrics: functions of forecast and target with a value per variable.

To add one, write a class with `@METRICS.register(NAME)`, and its test.

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

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float

from credit_jax.config import StrictModel
from credit_jax.config.components import Registry
from credit_jax.named_fields import FieldContext, FieldTree

EPSILON = 1e-12
PerVariable = Float[Array, " variable"]
# (tree, context) -> values of a step by name, the same on every shard.
Measure: TypeAlias = Callable[[FieldTree, FieldContext], dict[str, Array]]


@dataclass(frozen=True)
class Pair:
    """A forecast and its target, as local arrays in float32 or wider.

    Attributes:
        prediction: (samples, channel, time, rows, lon); every ensemble member is a
            sample, those of the first target first.
        target: (samples, channel, time, rows, lon), repeated for every member.
        climatology: (1, channel, time, rows, lon), or None for metrics without one.
        context: global means, channels, area weights, number of members.
    """

    prediction: Array
    target: Array
    climatology: Array | None
    context: FieldContext

    @property
    def members(self) -> Array:
        """The forecast by member, (batch, member, channel, time, rows, lon)."""
        return self.context.members(self.prediction)

    @property
    def ensemble_mean(self) -> Array:
        """The mean over members, (batch, channel, time, rows, lon)."""
        return self.members.mean(axis=1)

    @property
    def truth(self) -> Array:
        """The target without repetition, (batch, channel, time, rows, lon)."""
        return self.context.members(self.target)[:, 0]

    def mean(self, values: Array) -> PerVariable:
        """Area-weighted mean of each variable."""
        return self.context.variable_mean(values)

    def centered(self, values: Array) -> Array:
        """`values` minus the area-weighted mean of their variable."""
        return values - self.context.layout.per_channel(self.mean(values))

    def anomaly(self, values: Array) -> Array:
        """`values` minus the climatology, centered."""
        assert self.climatology is not None, "checked when the metrics are built"
        return self.centered(values - self.climatology)


class ConfiguredMetric(StrictModel, abc.ABC):
    """A metric that configs name; its fields are its arguments.

    `scale_power` is the power of a variable's unit in the score: 2 for a squared error,
    1 for an error, 0 for a ratio. `needs_climatology` is whether it compares with the
    mean of the training period.
    """

    scale_power: ClassVar[int] = 2

    @abc.abstractmethod
    def __call__(self, pair: Pair) -> PerVariable:
        """Computes the scores, the same on every shard."""

    @property
    def needs_climatology(self) -> bool:
        return False


class AnomalyMetric(ConfiguredMetric):
    """A metric that compares with a climatology.

    Attributes:
        climatology_path: file with a mean field of each variable, by its name; for
            variables that it lacks, the mean of the targets of the batch is used. null
            uses the mean of the training period.
        accumulate_climatology: if false, and without a file, the mean of the targets of
            the batch is used.

    Differs from CREDIT: without a file CREDIT uses the running mean of the targets of
    training and validation.
    """

    climatology_path: str | None = None
    accumulate_climatology: bool = True

    @property
    def needs_climatology(self) -> bool:
        return self.climatology_path is None and self.accumulate_climatology


METRICS: Registry[type[ConfiguredMetric]] = Registry("metric", ConfiguredMetric)


@METRICS.register("rmse")
class Rmse(ConfiguredMetric):
    """Root mean squared error."""

    scale_power: ClassVar = 1

    def __call__(self, pair: Pair) -> PerVariable:
        return jnp.sqrt(_mse(pair))


@METRICS.register("mse")
class Mse(ConfiguredMetric):
    """Mean squared error."""

    def __call__(self, pair: Pair) -> PerVariable:
        return _mse(pair)


@METRICS.register("mae")
class Mae(ConfiguredMetric):
    """Mean absolute error."""

    scale_power: ClassVar = 1

    def __call__(self, pair: Pair) -> PerVariable:
        return pair.mean(jnp.abs(pair.prediction - pair.target))


@METRICS.register("bias")
class Bias(ConfiguredMetric):
    """Mean error."""

    scale_power: ClassVar = 1

    def __call__(self, pair: Pair) -> PerVariable:
        return pair.mean(pair.prediction - pair.target)


@METRICS.register("r2score")
class R2Score(ConfiguredMetric):
    """Coefficient of determination: 1 - mse / variance of the target."""

    scale_power: ClassVar = 0

    def __call__(self, pair: Pair) -> PerVariable:
        total = pair.mean(jnp.square(pair.centered(pair.target)))
        return 1.0 - _mse(pair) / (total + EPSILON)


@METRICS.register("log_variance_ratio")
class LogVarianceRatio(ConfiguredMetric):
    """Base-10 logarithm of variance of the forecast / variance of the target.

    Attributes:
        eps: added to both variances.
    """

    eps: float = EPSILON

    scale_power: ClassVar = 0

    def __call__(self, pair: Pair) -> PerVariable:
        variances = [
            pair.mean(jnp.square(pair.centered(field)))
            for field in (pair.prediction, pair.target)
        ]
        return jnp.log10(variances[0] + self.eps) - jnp.log10(variances[1] + self.eps)


@METRICS.register("acc")
class AnomalyCorrelation(AnomalyMetric):
    """Anomaly correlation coefficient of forecast and target."""

    scale_power: ClassVar = 0

    def __call__(self, pair: Pair) -> PerVariable:
        forecast, truth = pair.anomaly(pair.prediction), pair.anomaly(pair.target)
        deviation = [
            jnp.sqrt(pair.mean(jnp.square(field)) + EPSILON)
            for field in (forecast, truth)
        ]
        return pair.mean(forecast * truth) / (deviation[0] * deviation[1])


@METRICS.register("activity")
class Activity(AnomalyMetric):
    """Standard deviation of the anomaly of the forecast."""

    scale_power: ClassVar = 1

    def __call__(self, pair: Pair) -> PerVariable:
        squares = jnp.square(pair.anomaly(pair.prediction))
        return jnp.sqrt(pair.mean(squares) + EPSILON)


def _mse(pair: Pair) -> PerVariable:
    return pair.mean(jnp.square(pair.prediction - pair.target))
